// A number and what it is.

function tile(name, value, more, look = "") {
  return el("div", { class: `tile ${look}` }, el("dt", {}, name), el("dd", {}, el("strong", {}, value), more && el("span", {}, more)));
}

// Elements, numbers and words. Text only ever becomes text: nothing here parses markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const bodyOf = (id) => byId(id).querySelector(".body");

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const percent = (value, digits = 1) => (known(value) ? (100 * value).toFixed(digits) + "\u00a0%" : "–");
const plain = (value, digits = 3) => (known(value) ? String(Number(value.toPrecision(digits))) : "–");
const grouped = (value) => (known(value) ? (Math.round(value) || 0).toLocaleString("en-GB") : "–");
const many = (count, one, more) => `${grouped(count)} ${count === 1 ? one : more || one + "s"}`;

function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 999.5 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${plain(value)} ${units[at]}`;
}

function duration(seconds, digits = 2) {
  if (!known(seconds)) return "–";
  if (seconds < 1) return `${plain(1000 * seconds, digits)} ms`;
  if (seconds < 60) return `${plain(seconds, digits)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** A title, a line that says what is pointed at, and a place of fixed height to draw in. */
function figure(title, className, note) {
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const host = el("div", { class: `plot ${className}` });
  const node = el("figure", {}, title && el("figcaption", {}, title), readout, host, note && el("p", { class: "note" }, note));
  return { node, readout, host };
}

const sentence = (text) => el("p", { class: "absent" }, text);

function table(head, rows, className) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    el("table", { class: className },
      head && el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col" }, cell)))),
      el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((c) => el("td", {}, c)))))));
}

const undrawn = [];

/** Draw when the place is on the page (drawNow), and again whenever it changes its size. */
function drawn(host, draw) {
  let width = -1;
  const fit = () => {
    if (!host.clientWidth || host.clientWidth === width) return;
    width = host.clientWidth;
    draw();
  };
  const observer = new ResizeObserver(() => (host.isConnected ? fit() : observer.disconnect()));
  observer.observe(host);
  undrawn.push(fit);
}

/** Draw what was put on the page, without waiting for the browser to come round to it: a printer would not. */
const drawNow = () => undrawn.splice(0).forEach((fit) => fit());

/** Pointer, touch and arrow keys move over positions; Enter or a click picks one. */
function pointing(host, { label, kind, at, move, tell, pick }) {
  fill(host, { tabindex: 0, role: "group", "aria-label": label, "aria-roledescription": kind }, []);
  let here = null;
  const go = (position) => {
    here = position;
    tell(position);
  };
  host.addEventListener("pointermove", (event) => go(at(event)));
  host.addEventListener("pointerleave", () => go(null));
  host.addEventListener("blur", () => go(null));
  host.addEventListener("click", (event) => {
    const position = at(event);
    go(position);
    if (pick && position !== null) pick(position);
  });
  host.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && pick && here !== null) {
      pick(here);
      event.preventDefault();
    } else if (/^(Arrow|Home|End)/.test(event.key)) {
      const next = move(here, event.key);
      if (next === undefined) return;
      go(next);
      event.preventDefault();
    }
  });
}

/** The next position on a line of so many. */
function along(here, key, count) {
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (here === null) return key === "ArrowLeft" ? count - 1 : 0;
  if (key === "ArrowRight" || key === "ArrowUp") return Math.min(count - 1, here + 1);
  return Math.max(0, here - 1);
}

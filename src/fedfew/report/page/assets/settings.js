// Settings, and how to repeat the run.

function showSettings(doc) {
  bodyOf("settings").replaceChildren(el("div", { class: "settings" },
    doc.settings.filter((part) => part.rows.length).map((part) => el("div", {}, el("h3", {}, part.title), table(null, part.rows, "facts")))));
}

function copyable({ title, text }) {
  const block = el("pre", { tabindex: 0 }, text);
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(block); // a page opened from a file may not be allowed to: select it, for Ctrl-C
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return el("div", { class: "copyable" }, el("div", { class: "controls" }, el("h3", {}, title), button), block);
}

function showAgain(doc) {
  const versions = Object.entries(doc.reproduction.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const same = [versions && `Made with ${versions}.`, doc.reproduction.fingerprint && `SHA-256 of the partitioned data: ${doc.reproduction.fingerprint}.`];
  bodyOf("reproduction").replaceChildren(...doc.reproduction.steps.map(copyable), el("p", { class: "note" }, same.filter(Boolean).join(" ")));
  byId("foot").textContent = `Made by fedfew ${doc.made.fedfew}. One file, nothing loaded from elsewhere.`;
}

// The page of a run.

const SECTIONS = {
  curves: showCurves, clients: showClients, models: showModels, weights: showWeights, labels: showLabels, classes: showClasses,
  client: showClient, fairness: showFairness, costs: showCosts,
};
let shown = null;

/** Show a document; where the reader was, what had the focus and what was open stay as they were. */
function show(doc) {
  const first = shown === null;
  shown = doc;
  const ready = decoded(doc);
  const focus = document.activeElement && document.activeElement.id;
  const open = Array.from(document.querySelectorAll("details[open]"), (node) => node.id);
  const top = window.scrollY;
  clearInterval(view.playing);
  view.playing = null;
  forget();
  document.title = doc.title;
  showSummary(ready);
  for (const [id, section] of Object.entries(SECTIONS)) {
    byId(id).hidden = !doc.rounds;
    document.querySelector(`nav a[href="#${id}"]`).parentElement.hidden = !doc.rounds;
    if (doc.rounds) section(ready);
  }
  const started = Boolean(doc.settings);
  for (const id of ["settings", "reproduction"]) byId(id).hidden = !started;
  if (started) {
    showSettings(ready);
    showAgain(ready);
  }
  drawNow();
  tellAll("round");
  tellAll("client");
  open.forEach((id) => byId(id) && byId(id).setAttribute("open", ""));
  if (focus && byId(focus) && document.activeElement !== byId(focus)) byId(focus).focus({ preventScroll: true });
  if (!first) window.scrollTo(0, top);
  document.body.dataset.ready = doc.tag || "yes";
}

const doc = JSON.parse(byId("data").textContent);
show(doc);
DARK.addEventListener("change", () => show(shown));
for (const [event, now] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(event, () => {
    printing = now;
    if (DARK.matches) show(shown); // paper is white
  });
}
if (doc.live) follow(show, doc.live);

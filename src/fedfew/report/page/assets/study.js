// The page of a study.

const LINES = 12; // looks that page.css has for lines
const choice = (id, label, options, change) => el("label", {}, `${label} `,
  el("select", { id, onchange: change }, options.map(([value, words]) => el("option", { value }, words))));
const distinct = (list, name) => [...new Set(list.map((item) => item[name]))];

function showStudySummary(doc) {
  const { study, summary } = doc;
  byId("title").textContent = doc.title;
  document.querySelectorAll(".score-name").forEach((node) => (node.textContent = summary.score));
  byId("subtitle").textContent = [`study ${study.name}`, summary.runs && many(summary.runs, "run"), summary.protocols.length && `protocol ${summary.protocols.join(" and ")}`,
    study.folder && `folder ${study.folder}`].filter(Boolean).join(" · ");
  const tiles = summary.runs ? [
    tile("finished runs", grouped(summary.done), ` of ${grouped(summary.runs)}`),
    tile("failed", grouped(summary.failed)), tile("not run", grouped(summary.missing)),
    tile("seeds", grouped(summary.seeds)), tile("time of all runs", duration(summary.seconds)),
  ] : [];
  const made = Object.entries(summary.versions).filter(([, found]) => found.length).map(([name, found]) => `${name} ${found.join(", ")}`);
  bodyOf("summary").replaceChildren(study.about ? el("p", { class: "lead" }, study.about) : "", el("dl", { class: "tiles" }, tiles),
    made.length ? el("p", { class: "note" }, `Made with ${made.join("; ")}.`) : "");
}

function tableCell(cell) {
  const value = cell.rank === 1 ? el("strong", {}, cell.value) : cell.rank === 2 ? el("u", {}, cell.value) : cell.value || "";
  const spread = [cell.clients && ` ±${cell.clients}`, cell.seeds && ` (±${cell.seeds})`].filter(Boolean).join("");
  const paper = cell.paper && `paper ${cell.paper}${cell.paper_clients ? ` ±${cell.paper_clients}` : ""}${cell.difference ? `, ${cell.difference}` : ""}${cell.unlike ? " (scored the other way)" : ""}`;
  return [value, spread, cell.note ? el("small", { class: "why" }, cell.note) : null, paper ? el("small", {}, paper) : null];
}

function showTables(doc) {
  const body = bodyOf("tables");
  if (!doc.tables.length) return body.replaceChildren(sentence("This study makes no tables."));
  const protocols = distinct(doc.tables, "protocol");
  const parts = doc.tables.map((one) => ({ protocol: one.protocol, node: el("div", { class: "stack" },
    el("h3", {}, one.title), el("p", { class: "note" }, one.caption),
    table(["", ...one.columns], one.rows.map(([label, cells]) => [label, ...cells.map(tableCell)]), "numbers study"),
    one.notes.length ? el("ul", { class: "note" }, one.notes.map((note) => el("li", {}, note))) : null) }));
  const filter = () => parts.forEach(({ protocol, node }) => (node.hidden = byId("table-protocol") && !["", protocol].includes(byId("table-protocol").value)));
  body.replaceChildren(protocols.length > 1 ? el("div", { class: "controls" },
    choice("table-protocol", "Protocol", [["", "all"], ...protocols.map((p) => [p, p])], filter)) : "",
    ...parts.map(({ node }) => node));
}

function showFigures(doc) {
  const { figures, figures_left_out: left } = doc;
  byId("figures").hidden = !figures.length && !left.length;
  bodyOf("figures").replaceChildren(...figures.map(({ name, data }) => el("figure", { class: "picture" }, el("img", { src: data, alt: `Figure: ${name}` }), el("figcaption", {}, name))),
    left.length ? el("p", { class: "note" }, `Too large for this page, to be found in the study's folder: ${left.join(", ")}.`) : "");
}

function showStudyCurves(doc) {
  byId("curves").hidden = !doc.curves.length;
  if (!doc.curves.length) return;
  const place = (curve) => [curve.protocol, curve.column].join(" · ");
  const places = [...new Set(doc.curves.map(place))];
  const holder = el("div", {});
  const draw = () => {
    const score = byId("curve-score").value;
    const found = doc.curves.filter((curve) => place(curve) === byId("curve-place").value);
    const label = (curve) => [curve.row, curve.point].filter(Boolean).join(", ");
    const x = [...new Set(found.flatMap((curve) => curve.rounds))].sort((a, b) => a - b);
    const series = found.map((curve, i) => {
      const at = new Map(curve.rounds.map((round, r) => [round, curve[score][r]]));
      return { name: label(curve), values: x.map((round) => at.get(round) ?? null), look: `m${i % LINES}` };
    });
    const part = figure(`${byId("curve-place").value}, ${score}`, "tall");
    part.readout.classList.add("long");
    lineChart(part, {
      label: `Learning curves, ${score}`, x, series: series.map((s) => ({ ...s, values: joined(s.values) })), format: (v, digits) => `${plain(100 * v, digits)} %`,
      tell: (i) => `round ${grouped(x[i])}: ` + series.map((s) => [s.name, joined(s.values)[i]]).filter(([, v]) => known(v)).sort((a, b) => b[1] - a[1]).map(([name, v]) => `${name} ${percent(v)}`).join(", "),
    });
    part.node.append(legend(series.map((s, i) => [s.look, `${s.name} (${many(found[i].seeds, "seed")})`])));
    holder.replaceChildren(part.node);
    drawNow();
  };
  bodyOf("curves").replaceChildren(el("div", { class: "controls" }, choice("curve-place", "Where", places.map((p) => [p, p]), draw),
    choice("curve-score", "Score", [["served", "served"], ["adapted", "adapted"]], draw)), holder);
  draw();
}

/** Rounds that one curve has and another has not are bridged, so that lines do not break. */
function joined(values) {
  const out = values.slice();
  let before = -1;
  values.forEach((v, i) => {
    if (!known(v)) return;
    if (before >= 0) for (let j = before + 1; j < i; j++) out[j] = values[before] + ((v - values[before]) * (j - before)) / (i - before);
    before = i;
  });
  return out;
}

function showRuns(doc) {
  const body = bodyOf("runs");
  byId("runs").hidden = !doc.runs.length;
  if (!doc.runs.length) return;
  const count = el("p", { class: "note", role: "status", id: "runs-count" });
  const holder = el("div", {});
  const score = (run, name) => (known(run[`${name}_mean`]) ? `${percent(run[`${name}_mean`])} ± ${(100 * (run[`${name}_std`] || 0)).toFixed(1)}` : "–");
  const STATES = { done: "✓ done", failed: "✗ failed", missing: "– not run" };
  const draw = () => {
    const words = byId("runs-words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => ["protocol", "column", "status"].every((name) => ["", run[name]].includes(byId(`runs-${name}`).value))
      && words.every((word) => `${run.row} ${run.point} ${run.column} ${run.key} ${run.error} seed ${run.seed}`.toLowerCase().includes(word));
    const found = doc.runs.filter(fits);
    const shown = found.slice(0, 500);
    count.textContent = `${many(found.length, "run")} of ${grouped(doc.summary.runs)}` + (shown.length < found.length ? `, of which the first ${shown.length} are listed.` : ".");
    holder.replaceChildren(table(["method", "column", "point", "protocol", "seed", "status", "served", "adapted", "worst served", "Jain", "time"],
      shown.map((run) => [run.row, run.column, run.point || "–", run.protocol, String(run.seed), [STATES[run.status] || run.status, run.error ? el("small", { class: "why" }, run.error) : null],
        score(run, "served"), score(run, "adapted"), percent(run.served_min), plain(run.served_jain, 4), duration(run.seconds)]), "runs"));
  };
  const options = (name) => [["", "all"], ...distinct(doc.runs, name).map((value) => [value, value])];
  body.replaceChildren(el("div", { class: "controls" }, choice("runs-protocol", "Protocol", options("protocol"), draw), choice("runs-column", "Column", options("column"), draw),
    choice("runs-status", "Status", options("status"), draw), el("label", {}, "Words ", el("input", { type: "search", id: "runs-words", oninput: draw }))), count, holder);
  draw();
}

function showStudy(doc) {
  showStudySummary(doc);
  showTables(doc);
  showFigures(doc);
  showStudyCurves(doc);
  showRuns(doc);
  bodyOf("reproduction").replaceChildren(copyable(doc.reproduction));
  byId("foot").textContent = `Made by fedfew ${doc.made.fedfew}. One file, nothing loaded from elsewhere.`;
  for (const id of ["tables", "figures", "curves", "runs"]) document.querySelector(`nav a[href="#${id}"]`).parentElement.hidden = byId(id).hidden;
  document.body.dataset.ready = "yes";
}

showStudy(JSON.parse(byId("data").textContent));

// Which client uses which model, and how that changed.

function showModels(doc) {
  const body = bodyOf("models");
  if (doc.absent.choice) return body.replaceChildren(sentence(doc.absent.choice));
  const { choice } = doc.maps;
  const count = doc.rows.size.length, order = doc.rows.order, last = doc.rounds.length - 1;
  const spans = spansByModel(doc);
  const at = (place, round) => choice[round * count + order[place]];
  const part = figure(doc.rows.binned ? "The model most clients of a bin use" : "The model each client uses", "strip");
  part.host.style.setProperty("height", `${stripHeight(count)}px`);
  const chart = gridChart(part, {
    label: "Model in use, clients by rounds. Arrow keys move, Enter opens a client.",
    rows: count, columns: doc.rounds.length, left: 84, right: tickRoom(doc), rowTicks: clientNumbers(doc),
    runs: (r, c) => plain(at(r, c)),
    colour: (r, c) => modelColour(at(r, c), doc.models),
    absent: (r, c) => !Number.isFinite(at(r, c)),
    rowNames: spans.map(({ model, from, to }) => ({ from, to, text: `model ${plain(model)}`, colour: modelColour(model, doc.models) })),
    lines: spans.slice(1).map(({ from }) => from),
    ticks: (width) => roundTicks(doc, width),
    tell: (r, c) => (r === null ? inUse(doc) : `round ${grouped(doc.rounds[c])}, ${rowName(doc, order[r])}: model ${plain(at(r, c))}`),
    pick: (r) => pickClient(clientOf(doc, order[r]), true),
  });
  on("client", () => chart.markAt(null, order.indexOf(rowOf(doc, shownClient(doc)))));
  const { switches } = doc.curves;
  const total = doc.clients.switches.reduce((a, b) => a + b, 0);
  const ever = doc.clients.switches.filter((n) => n > 0).length;
  const latest = switches.findLastIndex((n) => n > 0);
  const said = total ? `${many(total, "change")} of model in all, by ${grouped(ever)} of ${many(doc.run.clients, "client")}; the last by round ${grouped(doc.rounds[latest])}.`
    : "No client ever changed its model.";
  const below = figure("Clients that changed their model since the round drawn before", "low");
  barChart(below, {
    label: `Changes of model by round. ${said}`, values: switches, left: 84, right: 34, format: (v) => grouped(v),
    tell: (i) => (i === null ? said : `round ${grouped(doc.rounds[i])}: ${many(switches[i], "client")} changed`),
  });
  const key = el("ul", { class: "legend" }, Array.from({ length: doc.models }, (_, k) => {
    const users = doc.clients.choice.filter((c) => c === k).length;
    return el("li", {}, swatch(k, doc.models), `model ${k}: ${many(users, "client")}`);
  }));
  body.replaceChildren(part.node, key, below.node);
}

function inUse(doc) {
  return `${modelsUsed(doc)} of ${doc.models} models in use after round ${grouped(doc.in_use)}.`;
}

const stripHeight = (rows) => 19 + (rows <= 40 ? Math.max(120, 15 * rows) : rows <= 120 ? 5 * rows : 480);
const clientNumbers = (doc) => (doc.rows.binned ? null : doc.rows.order.map((row) => clientTick(doc, row)));

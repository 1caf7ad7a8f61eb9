// One client: its scores, its curves, its weights, its labels.

/** The client shown: the one picked or, before any is, the worst served. */
const shownClient = (doc) => (view.client !== null && view.client < doc.run.clients ? view.client : Math.max(0, worstClient(doc.clients.served)));

function showClient(doc) {
  const { served, adapted, alpha } = doc.clients;
  const M = doc.run.clients;
  const named = doc.names.length > 0;
  const field = named ? el("input", { type: "text", id: "client-number", list: "client-names", autocomplete: "off" })
    : el("input", { type: "number", id: "client-number", min: 0, max: M - 1, step: 1, inputmode: "numeric" });
  const wrong = el("span", { class: "wrong", role: "alert" });
  const go = () => {
    const byName = doc.names.indexOf(field.value.trim());
    const wanted = byName >= 0 ? byName : Number(field.value);
    const fine = field.value.trim() !== "" && Number.isInteger(wanted) && wanted >= 0 && wanted < M;
    wrong.textContent = fine ? "" : named ? "No client has that name." : `Clients have the numbers 0 to ${M - 1}.`;
    if (fine) pickClient(wanted, false);
  };
  field.addEventListener("change", go);
  const step = (by) => () => pickClient((shownClient(doc) + by + M) % M, false);
  const most = (values, sign) => () => {
    let best = 0;
    values.forEach((v, i) => {
      if (Number.isFinite(v) && (!Number.isFinite(values[best]) || sign * v > sign * values[best])) best = i;
    });
    pickClient(best, false);
  };
  const button = (words, act, id) => el("button", { type: "button", id, onclick: act }, words);
  const form = el("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); go(); } },
    el("label", { for: "client-number" }, "Client"), field, named ? el("datalist", { id: "client-names" }, doc.names.map((name) => el("option", { value: name }))) : null, button("‹ previous", step(-1), "client-before"), button("next ›", step(1), "client-after"),
    button("worst served", most(served, -1), "client-worst"), button("worst adapted", most(adapted, -1), "client-worst-adapted"),
    button("best served", most(served, 1), "client-best"), alpha ? button("largest α", most(alpha, 1), "client-alpha") : null, wrong);
  const panel = el("div", { class: "client", id: "client-panel" });
  bodyOf("client").replaceChildren(form, panel);
  const show = () => {
    const client = shownClient(doc);
    field.value = named ? doc.names[client] : client;
    wrong.textContent = "";
    panel.replaceChildren(clientTiles(doc, client), clientCharts(doc, client));
    drawNow();
  };
  on("client", show);
  show();
}

function clientTiles(doc, client) {
  const c = doc.clients, last = (name) => c[name] && c[name][client];
  const rank = c.served.filter((v) => v < c.served[client]).length + 1;
  const tiles = [tile("served", percent(c.served[client]), ` ${grouped(rank)} of ${grouped(doc.run.clients)}, worst first`, "served"), tile("adapted", percent(c.adapted[client]), "", "adapted")];
  if (doc.models > 1) {
    const changes = last("switches");
    const uses = el("div", { class: "tile" }, el("dt", {}, "uses"), el("dd", {}, swatch(c.choice[client], doc.models), el("strong", {}, ` model ${plain(c.choice[client])}`),
      el("span", {}, changes ? ` changed ${grouped(changes)} ×` : " never changed")));
    tiles.push(uses);
  }
  if (c.alpha) tiles.push(tile("α", plain(last("alpha")), Number.isFinite(last("alpha")) ? ` ${plain(last("alpha") * doc.curves.present[doc.rounds.length - 1], 2)} × a fair share` : " absent"));
  if (c.train) tiles.push(tile("samples", grouped(last("train")), c.test ? ` and ${grouped(last("test"))} for tests` : ""));
  if (doc.groups.length && Number.isFinite(last("group"))) tiles.push(tile("true group", doc.groups[last("group")]));
  if (c.macro_f1) tiles.push(tile("served macro-F1", percent(last("macro_f1")), Number.isFinite(last("auc")) ? ` AUC ${percent(last("auc"))}` : ""));
  if (c.mae) tiles.push(tile("served MAE", plain(last("mae"), 4), ` RMSE ${plain(last("rmse"), 4)}`));
  if (c.perplexity) tiles.push(tile("served perplexity", plain(last("perplexity"), 4)));
  return el("dl", { class: "tiles" }, tiles);
}

function clientCharts(doc, client) {
  const count = doc.rows.size.length, row = rowOf(doc, client), K = doc.models;
  const column = (values) => doc.rounds.map((_, r) => values[r * count + row]);
  const whose = doc.rows.binned ? `mean of its bin of ${many(doc.rows.size[row], "client")}` : "its own";
  const parts = [];
  const scores = { served: column(doc.maps.served), adapted: column(doc.maps.adapted) };
  const first = figure(`Test ${doc.run.score} over rounds (${whose})`, "mid");
  lineChart(first, {
    label: `Test ${doc.run.score} of ${calledClient(doc, client)}`, x: doc.rounds, format: (v, digits) => `${plain(100 * v, digits)} %`,
    series: ["served", "adapted"].map((score) => ({ values: scores[score], look: score })),
    tell: (i) => `round ${grouped(doc.rounds[i])}: served ${percent(scores.served[i])}, adapted ${percent(scores.adapted[i])}`,
  });
  first.node.append(legend([["served", "served"], ["adapted", "adapted"]]));
  parts.push(first.node);
  if (doc.maps.alpha) {
    const values = column(doc.maps.alpha);
    const part = figure(`α over rounds, times a fair share (${whose})`, "mid");
    lineChart(part, {
      label: `α of ${calledClient(doc, client)}`, x: doc.rounds, format: (v, digits = 2) => `${plain(v, digits)} ×`, floor: 0,
      series: [{ values: values.map((a, i) => a * doc.curves.present[i]), look: "ink" }, { values: values.map(() => 1), look: "soft" }],
      tell: (i) => `round ${grouped(doc.rounds[i])}: ` + (Number.isFinite(values[i]) ? `α ${plain(values[i])}, ${plain(values[i] * doc.curves.present[i], 2)} × a fair share` : "did not take part"),
    });
    part.node.append(legend([["ink", "α"], ["soft", "a fair share"]]));
    parts.push(part.node);
  }
  if (doc.maps.w) {
    const at = (k, r) => doc.maps.w[(r * count + row) * K + k];
    const part = figure(`w over rounds (${whose})`, "");
    part.host.style.setProperty("height", `${19 + Math.max(80, 24 * K)}px`);
    gridChart(part, {
      label: `w of ${calledClient(doc, client)} for every model, by rounds`, rows: K, columns: doc.rounds.length, left: 64, right: MARGIN.right,
      colour: (k, r) => heat(at(k, r)), absent: (k, r) => !Number.isFinite(at(k, r)),
      rowNames: Array.from({ length: K }, (_, k) => ({ from: k, to: k + 1, text: `model ${k}` })),
      ticks: (width) => roundTicks(doc, width),
      tell: (k, r) => (k === null ? "The darker (in the dark theme: the lighter), the more the client counts for the model."
        : `round ${grouped(doc.rounds[r])}, model ${k}: w ${plain(at(k, r), 2)}`),
    });
    parts.push(part.node);
  }
  if (doc.labels) {
    const { classes, clients, all } = doc.labels;
    const values = Array.from(clients.subarray(client * classes.length, (client + 1) * classes.length));
    const part = figure("Its labels (bars), and those of all clients (lines)", "mid");
    barChart(part, {
      label: `Labels of ${calledClient(doc, client)}`, values, marks: all, names: classes.map((name) => (name.length > 14 ? name.slice(0, 13) + "…" : name)),
      xLabel: "", format: (v) => percent(v, 0), top: Math.max(...values, ...all),
      tell: (i) => (i === null ? `${many(values.filter((v) => v > 0).length, "label")} of ${classes.length}` : `label ${classes[i]}: ${percent(values[i])}; of all samples ${percent(all[i])}`),
    });
    parts.push(part.node);
  }
  return el("div", { class: "pair" }, parts);
}

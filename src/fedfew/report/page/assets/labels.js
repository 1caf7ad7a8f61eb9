// Who has which labels, beside the model that each client uses.

function showLabels(doc) {
  const body = bodyOf("labels");
  if (!doc.labels) return body.replaceChildren(sentence(doc.absent.labels));
  const { classes, clients, rows, all } = doc.labels;
  const C = classes.length, order = doc.rows.order, count = order.length, K = doc.models;
  const shares = rows || clients;
  const top = Math.min(1, Math.max(...[0.1, 2 * Math.max(...all)], quantile(shares, 0.995)));
  const at = (r, c) => shares[order[r] * C + c];
  const spans = spansByModel(doc);
  const part = figure(doc.rows.binned ? "Bins of clients by labels" : "Clients by labels", "strip");
  part.host.style.setProperty("height", `${stripHeight(count)}px`);
  const label = (c) => `label ${classes[c]}`;
  const chart = gridChart(part, {
    label: "Share of each label among a client's training samples. Arrow keys move, Enter opens a client.",
    rows: count, columns: C, left: 84, right: tickRoom(doc), rowTicks: clientNumbers(doc),
    colour: (r, c) => heat(at(r, c) / top),
    rowNames: spans.map(({ model, from, to }) => ({ from, to, text: K > 1 ? `model ${plain(model)}` : "", colour: modelColour(model, K) })),
    lines: spans.slice(1).map(({ from }) => from),
    ticks: (width) => classTicks(classes, width),
    tell: (r, c) => (r === null ? `${many(C, "label")}; the most frequent one is ${percent(Math.max(...all), 0)} of all samples.`
      : `${rowName(doc, order[r])}, ${label(c)}: ${percent(at(r, c))}; of all samples ${percent(all[c])}`),
    pick: (r) => pickClient(clientOf(doc, order[r]), true),
  });
  on("client", () => chart.markAt(null, order.indexOf(rowOf(doc, shownClient(doc)))));
  const keys = el("div", { class: "keys" }, scaleBar("share of a client's samples", [[0, "0"], [1, percent(top, 0)]]));
  body.replaceChildren(part.node, keys, K > 1 ? byModel(doc, top) : "");
}

/** Mean shares of the clients of each model. */
function byModel(doc, top) {
  const { classes, clients } = doc.labels;
  const C = classes.length, K = doc.models, users = new Float64Array(K), sums = new Float64Array(K * C);
  doc.clients.choice.forEach((k, i) => {
    if (!Number.isFinite(k)) return;
    users[k] += 1;
    for (let c = 0; c < C; c++) sums[k * C + c] += clients[i * C + c];
  });
  const at = (k, c) => (users[k] ? sums[k * C + c] / users[k] : NaN);
  const part = figure("What the clients of each model have, in the mean", "");
  part.host.style.setProperty("height", `${21 + Math.max(60, 26 * K)}px`);
  gridChart(part, {
    label: "Mean share of each label among the clients of each model",
    rows: K, columns: C, left: 84, right: 34,
    colour: (k, c) => heat(at(k, c) / top),
    absent: (k) => !users[k],
    text: (k, c) => (users[k] ? percent(at(k, c), 0) : ""),
    rowNames: Array.from({ length: K }, (_, k) => ({ from: k, to: k + 1, text: `model ${k}`, colour: modelColour(k, K) })),
    ticks: (width) => classTicks(classes, width),
    tell: (k, c) => (k === null ? " " : users[k] ? `model ${k}, ${many(users[k], "client")}, label ${classes[c]}: ${percent(at(k, c))}` : `model ${k} is used by no client`),
  });
  return part.node;
}

function classTicks(classes, width) {
  const room = Math.min(90, Math.max(...classes.map((name) => name.length)) * 6.3 + 8);
  const every = Math.max(1, Math.ceil(room / (width / classes.length)));
  return classes.map((name, at) => ({ at, text: name.length > 14 ? name.slice(0, 13) + "…" : name })).filter(({ at }) => at % every === 0);
}

function quantile(values, q) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  return sorted.length ? sorted[Math.floor(q * (sorted.length - 1))] : 1;
}

// What a round costs: measured (traffic, seconds) and counted from the method's messages.

function showCosts(doc) {
  const { curves, costs, run } = doc;
  const last = doc.rounds.length - 1;
  const mean = (list) => list.reduce((a, b) => a + (b || 0), 0) / list.length;
  const up = mean(curves.bytes_up), down = mean(curves.bytes_down);
  const tiles = [
    tile("to the server, a round", bytes(up), ` ${bytes(up * run.round)} in all`),
    tile("to the clients, a round", bytes(down), ` ${bytes(down * run.round)} in all`),
    tile("training, a round", duration(mean(curves.seconds)), ` ${duration(doc.seconds)} in all`),
    tile("clients in the last round", grouped(curves.present[last]), ` of ${grouped(run.clients)}`),
  ];
  const rows = [
    ["bytes_up", "sent by a client in a round", bytes],
    ["bytes_down", "received by a client in a round", bytes],
    ["steps", "optimiser steps of a client in a round, over all models it trains", (v) => plain(v, 4)],
    ["gradient_passes", "passes forward and backward over a client's data in a round", (v) => plain(v)],
    ["forward_passes", "passes forward only, to choose or to report losses", (v) => plain(v)],
    ["model_bytes", "size of one model", bytes],
    ["server_models", "models kept on the server", (v) => plain(v, 4)],
    ["client_models", "models kept by a client from round to round", (v) => plain(v, 4)],
    ["inference_passes", "models a client runs to predict one sample", (v) => plain(v)],
    ["selection_passes", "models a client compares to find the one it uses", (v) => plain(v)],
  ].filter(([name]) => known(costs[name])).map(([name, words, format]) => [words, format(costs[name])]);
  const part = figure("Seconds of training a round (scoring not counted)", "mid");
  const usual = quantile(curves.seconds, 0.5), far = curves.seconds.filter((v) => v > 8 * usual); // a first round may take long
  const top = far.length ? 4 * usual : Infinity;
  if (far.length) part.node.append(el("p", { class: "note" }, `${many(far.length, "round")} took longer than the chart is high, up to ${duration(Math.max(...far))}.`));
  lineChart(part, {
    label: "Seconds a round", x: doc.rounds, format: duration, floor: 0, series: [{ values: curves.seconds.map((v) => Math.min(v, top)), look: "ink" }],
    tell: (i) => `round ${grouped(doc.rounds[i])}: ${duration(curves.seconds[i])}`,
  });
  bodyOf("costs").replaceChildren(el("dl", { class: "tiles" }, tiles),
    el("div", { class: "pair" }, part.node, rows.length ? table(null, rows, "numbers facts") : sentence(doc.absent.costs)));
}

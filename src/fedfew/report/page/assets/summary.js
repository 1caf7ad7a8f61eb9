// The few numbers that matter most, what went wrong, and what kind of run this is.

function worstClient(values) {
  let worst = -1;
  values.forEach((v, i) => {
    if (Number.isFinite(v) && (worst < 0 || v < values[worst])) worst = i;
  });
  return worst;
}

function showSummary(doc) {
  const { run, scores } = doc;
  byId("title").textContent = doc.title;
  document.querySelectorAll(".round-in-use").forEach((node) => (node.textContent = doc.scores ? roundInUse(doc) : "last scored round"));
  document.querySelectorAll(".score-name").forEach((node) => (node.textContent = run.score || "accuracy"));
  byId("subtitle").textContent = [many(run.clients, "client"), run.what, `model ${run.model}`,
    `round ${grouped(run.round)} of ${grouped(run.rounds)}`, run.folder && `folder ${run.folder}`, run.sites && "made between real sites"]
    .filter(Boolean).join(" · ");
  const body = bodyOf("summary");
  if (doc.waiting) {
    byId("subtitle").textContent = `folder ${run.folder}`;
    return body.replaceChildren(sentence("There is no checkpoint yet. This page fills itself as soon as there is one."));
  }
  if (!scores) {
    body.replaceChildren(sentence("No round has been scored yet, so there is nothing to show but the settings below."), events(doc));
    return;
  }
  const tiles = ["served", "adapted"].map((score) => {
    const s = scores[score];
    return tile(`${score}, mean ± over clients`, percent(s.mean), known(s.std) ? ` ±\u00a0${(100 * s.std).toFixed(1)}` : "", score);
  });
  for (const score of ["served", "adapted"]) {
    const worst = worstClient(doc.clients[score]);
    tiles.push(tile(`worst client, ${score}`, percent(scores[score].min), worst < 0 ? "" : ` ${inOneLine(calledClient(doc, worst))}`, score));
  }
  tiles.push(tile("Jain's index, served", plain(scores.served.jain, 4), ` adapted ${plain(scores.adapted.jain, 4)}`));
  const used = modelsUsed(doc);
  tiles.push(doc.models > 1 && used ? tile("models in use", String(used), ` of ${doc.models}`) : tile("rounds", grouped(run.round), ` of ${grouped(run.rounds)}`));
  const words = doc.words.served && el("p", { class: "note" }, `Served with ${run.method}: ${doc.words.served}. Adapted: ${doc.words.adapted}.`);
  body.replaceChildren(el("dl", { class: "tiles" }, tiles), scoreTable(doc), words || "", thinning(doc) || "", events(doc));
}

function scoreTable(doc) {
  const { run, scores, final } = doc;
  const row = (name, s) => [name, `${percent(s.mean)} ± ${known(s.std) ? (100 * s.std).toFixed(1) : "–"}`, percent(s.min), percent(s.worst_tenth),
    percent(s.max), plain(s.jain, 4)];
  const rows = ["served", "single", "adapted"].filter((score) => scores[score]).map((score) => row(
    score === "single" ? `best single model, ${run.score}` : `${score} ${run.score}`, scores[score]));
  const more = { macro_f1: "served macro-F1", auc: "served AUC", subset_accuracy: "served subset accuracy" };
  for (const [name, words] of Object.entries(more)) if (final[name]) rows.push(row(words, final[name]));
  const errors = { mae: "served MAE", rmse: "served RMSE", perplexity: "served perplexity" }; // in their own units; the greatest is the worst
  for (const [name, words] of Object.entries(errors)) {
    const s = final[name];
    if (s) rows.push([words, `${plain(s.mean, 4)} ± ${plain(s.std, 4)}`, plain(s.max, 4), plain(s.worst_tenth, 4), plain(s.min, 4), plain(s.jain, 4)]);
  }
  return table([`over clients, ${roundInUse(doc)}`, "mean ± std", "worst", "worst tenth", "best", "Jain"], rows, "numbers");
}

function thinning({ run, rounds, rows }) {
  const said = [];
  if (rounds.length < run.scored) said.push(`${grouped(rounds.length)} of the ${grouped(run.scored)} scored rounds are drawn, evenly spaced, the last one always`);
  if (rows.binned) said.push(`heat maps show ${grouped(rows.size.length)} bins of clients that use the same model and are served about equally well`);
  return said.length ? el("p", { class: "note" }, said.join("; ").replace(/^./, (c) => c.toUpperCase()) + ".") : null;
}

function events({ events }) {
  if (!events.all) return el("p", { class: "note" }, "Nothing went wrong: no client was left out, no checkpoint refused.");
  const listed = events.newest.length < events.all ? `the newest ${grouped(events.newest.length)} of ${grouped(events.all)}` : grouped(events.all);
  return el("details", { class: "events", id: "events" }, el("summary", {}, `What happened on the way (${listed})`),
    el("ul", {}, events.newest.map((event) => el("li", {}, event))));
}

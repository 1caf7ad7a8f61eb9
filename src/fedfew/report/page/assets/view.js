// What the reader looks at: the round under the slider and the client picked. It survives new data and a change of theme.

const view = { round: null, client: null, playing: null }; // round: its number; null follows the newest
const listeners = { round: [], client: [] };

const forget = () => Object.values(listeners).forEach((list) => list.splice(0));
const on = (what, listener) => listeners[what].push(listener);
const tellAll = (what) => listeners[what].forEach((listener) => listener());

/** Position, among the rounds drawn, of the one looked at. */
function position(doc) {
  if (view.round === null) return doc.rounds.length - 1;
  let nearest = 0;
  doc.rounds.forEach((round, i) => {
    if (Math.abs(round - view.round) < Math.abs(doc.rounds[nearest] - view.round)) nearest = i;
  });
  return nearest;
}

function lookAt(doc, at) {
  view.round = at === doc.rounds.length - 1 ? null : doc.rounds[at];
  tellAll("round");
}

function pickClient(client, show) {
  view.client = client;
  tellAll("client");
  if (show) byId("client").scrollIntoView({ block: "start" });
}

/** What a row of a heat map is called: a client, or the clients of a bin. */
function rowName(doc, row) {
  return doc.rows.binned ? `${many(doc.rows.size[row], "client")} (${row + 1} of ${doc.rows.size.length} bins)` : clientName(doc, row);
}

/** Its name from the data, or "client 3" where it has none. */
const calledClient = (doc, client) => (doc.names.length ? doc.names[client] : `client ${client}`);
const shortened = (name, most = 16) => (name.length > most ? name.slice(0, most - 1) + "…" : name);
const inOneLine = (name) => (name.length > 16 ? name : name.replaceAll(" ", "\u00a0")); // long names break between words
const clientTick = (doc, client) => (doc.names.length ? shortened(doc.names[client]) : String(client));
/** Room beside a heat map for the clients' names or numbers. */
const tickRoom = (doc) => (doc.names.length ? 12 + 6.5 * Math.min(16, Math.max(...doc.names.map((name) => name.length))) : 34);

function clientName(doc, client) {
  const group = doc.clients.group[client];
  return calledClient(doc, client) + (doc.groups.length && Number.isFinite(group) ? `, group ${doc.groups[group]}` : "");
}

/** The first client of a row, which stands for it when it is picked. */
const clientOf = (doc, row) => (doc.rows.binned ? doc.rows.of.indexOf(row) : row);
const rowOf = (doc, client) => doc.rows.of[client];

/** Neighbouring rows, in the order drawn, that use the same model now: [{model, from, to, clients}]. */
function spansByModel(doc) {
  const last = doc.rounds.length - 1;
  const spans = [];
  doc.rows.order.forEach((row, place) => {
    const model = doc.maps.choice ? doc.maps.choice[last * doc.rows.size.length + row] : 0;
    const before = spans[spans.length - 1];
    if (before && Object.is(before.model, model)) [before.to, before.clients] = [place + 1, before.clients + doc.rows.size[row]];
    else spans.push({ model, from: place, to: place + 1, clients: doc.rows.size[row] });
  });
  return spans;
}

/** The round whose models clients use, which scores and choices are of: with keep="best" not the last one. */
const roundInUse = (doc) => (doc.in_use === doc.rounds[doc.rounds.length - 1] ? "last scored round"
  : `best round on validation data (${grouped(doc.in_use)})`);
const modelsUsed = (doc) => new Set(doc.clients.choice.filter((model) => model >= 0)).size;

// While the run goes on, as served by `fedfew watch`: ask for news, say how old they are.

/** every: milliseconds between two questions. */
function follow(show, { every }) {
  const line = byId("live");
  line.hidden = false;
  let tag = null, status = null, asked = 0, failed = 0;

  const say = () => {
    if (failed > 1) {
      line.textContent = "The server of this page does not answer any more: 'fedfew watch' was ended, or cannot be reached.";
      return (line.dataset.state = "gone");
    }
    if (!status) return;
    const age = status.age === null ? null : status.age + (Date.now() - asked) / 1000;
    const ago = age === null ? "" : `, updated ${age < 1 ? "just now" : duration(Math.floor(age)) + " ago"}`;
    line.textContent = status.words + ago + (status.more ? `. ${status.more}` : "");
    line.dataset.state = status.state;
  };

  const ask = async () => {
    try {
      status = await (await fetch("status.json", { cache: "no-store" })).json();
      [asked, failed] = [Date.now(), 0];
      if (status.tag !== tag) {
        const answer = await fetch("data.json", { cache: "no-cache" });
        if (answer.ok) {
          const fresh = await answer.json();
          tag = fresh.tag;
          show(fresh);
        }
      }
    } catch {
      failed += 1;
    }
    say();
    setTimeout(ask, status && status.state === "finished" && status.tag === tag ? 5 * every : every);
  };
  setInterval(say, 1000);
  ask();
}

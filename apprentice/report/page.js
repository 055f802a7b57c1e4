"use strict";
// Text of models and problems only ever enters the page through textContent, so it cannot become markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const json = (id) => JSON.parse(byId(id).textContent);
  const make = (tag, css, text) => {
    const node = document.createElement(tag);
    if (css) node.className = css;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const tip = byId("tip");
  const showTip = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    const below = event.clientY + 18;
    tip.style.top = (below + box.height > innerHeight ? event.clientY - box.height - 12 : below) + "px";
  };
  const hideTip = () => { tip.hidden = true; };

  // Charts: a cursor at the nearest step, and its values.
  for (const svg of document.querySelectorAll("svg.chart")) {
    const chart = JSON.parse(svg.dataset.chart);
    const cursor = svg.querySelector(".cursor");
    const steps = [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);
    const place = (x) => chart.left + (x - chart.low) / (chart.high - chart.low) * (chart.right - chart.left);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      const step = steps.reduce((a, b) => (Math.abs(place(b) - at) < Math.abs(place(a) - at) ? b : a));
      cursor.setAttribute("x1", place(step));
      cursor.setAttribute("x2", place(step));
      cursor.style.visibility = "visible";
      const lines = chart.series.filter((s) => s.x.includes(step))
        .map((s) => (s.label ? s.label + "  " : "") + s.y[s.x.indexOf(step)]);
      showTip(event, [chart.axis + " " + Number(step.toPrecision(6)), ...lines].join("\n"));
    });
    svg.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; hideTip(); });
  }

  // Trajectories.
  const all = json("data-trajectories");
  if (!all.length) return;
  const owners = json("data-owners");
  const perToken = (t, field) => t.runs.flatMap((run) => new Array(run[0]).fill(run[field]));
  const where = (t) => (t.stage.endsWith(t.mode) ? t.stage : t.stage + " · " + t.mode).replaceAll("_", " ");
  const fill = (id, values) => {
    for (const value of ["all", ...new Set(values)]) {
      const option = make("option", "", value);
      option.value = value;
      byId(id).append(option);
    }
    byId(id).addEventListener("change", refresh);
  };
  const tokenTip = (t, i) => {
    const producer = t.producers[t.producer[i]];
    const lines = ["token " + t.ids[i] + " at " + i, owners[t.owner[i]] + (producer === owners[t.owner[i]] ? "" : ", by " + producer)];
    if (t.version[i] !== null) lines.push("policy version " + t.version[i]);
    if (t.logprob[i] !== null) {
      lines.push("logprob " + t.logprob[i] + "  (p " + Math.exp(t.logprob[i]).toPrecision(3) + ")");
    }
    return lines.join("\n");
  };
  const meta = (label, value) => {
    const line = make("p", "meta");
    line.append(make("b", "", label + " "), document.createTextNode(value));
    return line;
  };
  const verdictOf = (t) => make("span", "verdict" + (t.verdict === "correct" ? " correct" : ""), t.status === "unusable" ? "unusable" : t.verdict);

  function show(t) {
    const view = byId("view");
    view.replaceChildren();
    t.owner ??= perToken(t, 1);
    t.producer ??= perToken(t, 2);
    t.version ??= perToken(t, 3);
    const head = make("p", "meta");
    head.append(verdictOf(t), document.createTextNode("  answer " + (t.answer ?? "none") + (t.reward === null ? "" : ", reward " + t.reward) + ", " + t.status + (t.reason ? " (" + t.reason + ")" : "")));
    const calls = t.calls.map((c) => c.tool + " → " + c.model + (c.error ? " (refused: " + c.error + ")" : "") + (c.outcome ? " (" + c.outcome + ")" : "") + (c.cost === null ? "" : " (cost " + c.cost + ")") + (c.query ? ": “" + c.query + "”" : ""));
    const notes = Object.entries(t.notes).map(([name, value]) => name.replaceAll("_", " ") + " " + value);
    view.append(head, meta("Trajectory", t.id + ", problem " + t.problem),
      meta("Calls", calls.join(", ") || "none"),
      ...(notes.length ? [meta("Query", notes.join(", "))] : []),
      meta("Tokens", Object.entries(t.owners).filter(([, n]) => n).map(([name, n]) => n + " " + name).join(", ")));
    const text = make("pre");
    t.text.forEach((piece, i) => {
      const token = make("span", "tok " + owners[t.owner[i]], piece);
      token.dataset.i = i;
      text.append(token);
    });
    if (t.total > t.text.length) text.append(make("em", "muted", "\n… " + (t.total - t.text.length) + " more tokens"));
    text.addEventListener("pointermove", (event) => {
      const i = event.target.dataset?.i;
      if (i === undefined) hideTip(); else showTip(event, tokenTip(t, Number(i)));
    });
    text.addEventListener("pointerleave", hideTip);
    view.append(text);
    view.scrollTop = 0;
  }

  function refresh() {
    const mode = byId("filter-mode").value, verdict = byId("filter-verdict").value;
    const found = all.filter((t) => (mode === "all" || where(t) === mode) && (verdict === "all" || t.verdict === verdict));
    byId("filter-count").textContent = found.length + " of " + all.length;
    const buttons = found.map((t) => {
      const button = make("button");
      button.type = "button";
      button.append(make("span", "", t.problem), make("small", "", where(t)));
      const line = make("small");
      line.append(verdictOf(t), document.createTextNode(" · " + t.calls.length + (t.calls.length === 1 ? " call · " : " calls · ") + t.total + " tokens"));
      button.append(line);
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-current", String(other === button));
        show(t);
      });
      return button;
    });
    byId("list").replaceChildren(...buttons.map((button) => {
      const item = make("li");
      item.append(button);
      return item;
    }));
    if (buttons.length) buttons[0].click(); else byId("view").replaceChildren();
  }
  fill("filter-mode", all.map(where));
  fill("filter-verdict", all.map((t) => t.verdict));
  refresh();
})();

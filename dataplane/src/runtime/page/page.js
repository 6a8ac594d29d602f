// The status page: polls /status once a second and shows it. Whatever comes from outside (names, session ids, addresses)
// is put in as text, never as markup.
"use strict";
(() => {
  const POLL_MS = 1000;
  // An answer may wait 0.2 s for the arbiters; beyond this the appliance does not answer.
  const ANSWER_MS_MAX = 4000;
  // Rates are means over so many samples, and the small curves show so many.
  const RATE_SAMPLES = 5;
  const CURVE_SAMPLES = 60;
  // Closed streams and identities beyond these are left to /status.
  const ROWS_MAX = 200;
  const STREAMS_MAX = 16;
  const BARS_MAX = 48;

  const history = [];
  const curves = new Map();
  let answered = null;
  let failure = null;
  let asking = false;
  let edges = [];

  // --- building ------------------------------------------------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    const svg = ["svg", "path", "polyline", "rect", "title"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function fill(id, ...children) {
    document.getElementById(id).replaceChildren(...children);
  }

  function nothing(text) {
    return make("p", { class: "dim" }, text);
  }

  // columns: names; a name that begins with "#" is of numbers. rows: arrays of text, or of [text, attributes].
  function table(columns, rows) {
    const label = (column) => column.replace(/^#/, "");
    const kind = (column) => (column.startsWith("#") ? "number" : "text");
    const head = make("tr", {}, ...columns.map((column) => make("th", { class: kind(column) }, label(column))));
    const body = rows.slice(0, ROWS_MAX).map((row) =>
      make("tr", {}, ...row.map((cell, at) => {
        const [text, attributes] = Array.isArray(cell) ? cell : [cell, {}];
        const classes = [kind(columns[at]), attributes.class].filter(Boolean).join(" ");
        const words = text instanceof Node ? text : make("span", {}, String(text));
        return make("td", { ...attributes, class: classes, "data-label": label(columns[at]) }, words);
      })));
    const whole = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
    if (rows.length <= ROWS_MAX) return whole;
    return make("div", {}, whole, nothing(`and ${rows.length - ROWS_MAX} more: see /status`));
  }

  // --- words ---------------------------------------------------------------------------------------------------------

  const count = (value) => (Number.isFinite(value) ? value.toLocaleString("en-US") : "–");
  const list = (value) => (Array.isArray(value) ? value : []);
  const field = (name, value, more = {}) => [count(value), { "data-field": name, "data-value": String(value), ...more }];
  const told = (name, value) => make("span", { "data-field": name, "data-value": String(value) }, count(value));
  const wrong = (name, value) => field(name, value, value > 0 ? { class: "bad" } : {});

  function scaled(value, units, step) {
    let at = 0;
    while (Math.abs(value) >= step && at < units.length - 1) {
      value /= step;
      at += 1;
    }
    return `${value < 10 && at > 0 ? value.toFixed(1) : Math.round(value)} ${units[at]}`.trim();
  }

  const bytes = (value) => (Number.isFinite(value) ? scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024) : "–");
  const short = (value) => scaled(value, ["", "k", "M", "G"], 1000);

  function nanos(value) {
    const size = Math.abs(value);
    if (size < 1e4) return `${value} ns`;
    if (size < 1e7) return `${(value / 1e3).toFixed(1)} µs`;
    if (size < 1e10) return `${(value / 1e6).toFixed(1)} ms`;
    return size < 7.2e12 ? `${(value / 1e9).toFixed(1)} s` : `${(value / 3.6e12).toFixed(1)} h`;
  }

  // A percentile or an edge of a histogram: from 2^42 ns on all share the last bucket (feed/histogram.rs).
  const LONGEST_NS = 2 ** 42;
  function bucketed(value) {
    if (Math.abs(value) < LONGEST_NS) return nanos(value);
    return value > 0 ? `> ${nanos(LONGEST_NS)}` : `< ${nanos(-LONGEST_NS)}`;
  }

  function lasting(seconds) {
    const whole = Math.floor(seconds);
    if (whole < 120) return `${whole} s`;
    if (whole < 7200) return `${Math.floor(whole / 60)} min`;
    return whole < 172800 ? `${Math.floor(whole / 3600)} h` : `${Math.floor(whole / 86400)} days`;
  }

  // What is not bounded is told as such.
  const bound = (value, words) => (Number.isFinite(value) ? words(value) : "none");

  // --- numbers of the nodes ------------------------------------------------------------------------------------------

  const streams = (feed) => list(feed.report && feed.report.streams);
  const emitted = (feed) => streams(feed).reduce((sum, stream) => sum + stream.unique + stream.late_fill, 0);

  // What each node has counted: id -> [count, unit, whether bytes].
  function counted(status) {
    const counts = new Map();
    const capture = status.capture || {};
    for (const queue of list(capture.queues)) {
      counts.set(`queue ${queue.source} ${queue.queue}`, [queue.received, "frames"]);
      if (queue.source.startsWith("files of ")) counts.set(`files ${queue.source.slice(9)}`, [queue.received, "packets"]);
    }
    for (const feed of list(capture.feeds)) {
      counts.set(`feed ${feed.feed}`, [emitted(feed), "messages"]);
      if (feed.publish) counts.set(`ring ${feed.publish}`, [feed.published + feed.published_marks, "records"]);
    }
    for (const store of list(status.stores)) counts.set(`store ${store.store}`, [store.stored, "records"]);
    const ring = status.ring || {};
    for (const mirror of list(ring.mirror)) {
      counts.set(`mirror ${mirror.name}`, [mirror.records, "records"]);
      counts.set(`peer ${mirror.source}`, [mirror.bytes, "", true]);
      counts.set(`ring ${mirror.ring}`, [mirror.records, "records"]);
    }
    for (const serve of list(ring.serve)) {
      counts.set(`serve ${serve.name}`, [serve.datagram_records + serve.stream_records, "records"]);
      if (!counts.has(`ring ${serve.ring}`)) counts.set(`ring ${serve.ring}`, [serve.head, "records"]);
    }
    if (status.ledger) {
      const source = status.ledger.from || status.ledger.relay || {};
      counts.set("ledger source", [source.bytes, "", true]);
      counts.set("ledger", [status.ledger.sent_bytes, "", true]);
    }
    return counts;
  }

  // Per second, over the last samples; null before there are two.
  function rate(id) {
    const last = history[history.length - 1];
    const first = history[Math.max(0, history.length - 1 - RATE_SAMPLES)];
    const [now, before] = [last.counts.get(id), first.counts.get(id)];
    const seconds = (last.at - first.at) / 1000;
    if (!now || !before || seconds <= 0 || now[0] < before[0]) return null;
    return (now[0] - before[0]) / seconds;
  }

  function rateText(id) {
    const [value, unit, inBytes] = history[history.length - 1].counts.get(id) || [];
    if (!Number.isFinite(value)) return ["–", "nothing counted yet"];
    const now = rate(id);
    const total = inBytes ? bytes(value) : `${count(value)} ${unit}`;
    if (now === null) return ["…", total];
    return [inBytes ? `${bytes(now)}/s` : `${short(now)} ${unit}/s`, total];
  }

  // --- sections ------------------------------------------------------------------------------------------------------

  function head(status) {
    const health = status.health || {};
    const reasons = list(health.reasons);
    const state = document.getElementById("state");
    const good = health.healthy && health.ready;
    state.textContent = !health.healthy ? "unhealthy" : health.ready ? "healthy" : health.stage === "running" ? "not ready" : health.stage;
    state.className = `badge ${good ? "good" : health.healthy ? "warn" : "bad"}`;
    const about = status.appliance || {};
    fill("about", about.version
      ? `version ${about.version}, process ${about.pid}, up ${lasting(about.uptime_seconds)} since ${new Date(about.started_utc_ms).toISOString().slice(0, 19)}Z`
      : "being started");
    const classes = { unhealthy: "bad", not_ready: "warn", shown: "dim" };
    const line = (reason) => {
      const grown = Number.isFinite(reason.count) ? ` (${count(reason.count)} since it began)` : "";
      return make("li", { class: classes[reason.level] || "dim", "data-reason": reason.reason }, `${reason.what}${grown}, for ${lasting(reason.for_seconds)}`);
    };
    fill("reasons", ...(reasons.length ? reasons.map(line) : [make("li", { class: "good" }, "Nothing is wrong.")]));
  }

  function curve(id) {
    const values = curves.get(id) || [];
    const highest = Math.max(1, ...values);
    const points = values.map((value, at) => `${(at / (CURVE_SAMPLES - 1)) * 100},${19 - (value / highest) * 18}`);
    return make("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none" }, make("polyline", { points: points.join(" ") }));
  }

  function flow(status) {
    const about = status.appliance || {};
    const nodes = list(about.nodes);
    edges = list(about.edges);
    const names = new Map(nodes.map((node) => [node.id, node.name]));
    const columns = [0, 1, 2, 3].map((column) => make("div", { class: "column" }, ...nodes
      .filter((node) => node.column === column)
      .map((node) => {
        const [now, total] = rateText(node.id);
        const to = edges.filter(([from]) => from === node.id).map(([, end]) => names.get(end) || end);
        const card = make("div", { class: "node", "data-node": node.id },
          make("div", { class: "kind" }, node.core ? `${node.kind}, core ${node.core}` : node.kind),
          make("div", {}, node.name), make("div", { class: "rate" }, now), make("div", { class: "dim" }, total), curve(node.id));
        if (to.length) card.append(make("div", { class: "to" }, `→ ${to.join(", ")}`));
        return card;
      })));
    fill("columns", ...(nodes.length ? columns : [nothing("Nothing is started yet.")]));
    draw();
  }

  // The lines between the cards, where they stand beside one another.
  function draw() {
    const around = document.getElementById("flow").getBoundingClientRect();
    const cards = new Map([...document.querySelectorAll("[data-node]")].map((card) => [card.dataset.node, card.getBoundingClientRect()]));
    const lines = edges.map(([from, to]) => {
      const [a, b] = [cards.get(from), cards.get(to)];
      if (!a || !b) return null;
      const [x1, y1] = [a.right - around.left, a.top + a.height / 2 - around.top];
      const [x2, y2] = [b.left - around.left, b.top + b.height / 2 - around.top];
      const middle = (x1 + x2) / 2;
      return make("path", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
    });
    fill("lines", ...lines.filter(Boolean));
  }

  function books(capture) {
    const identities = list(capture.conservation);
    if (!list(capture.feeds).length) {
      fill("residue", "This process captures no feed.");
      fill("identities");
      return;
    }
    const residue = make("strong", { class: capture.residue ? "warn" : "good", "data-field": "residue", "data-value": capture.residue }, count(capture.residue));
    fill("residue", "Residue in all: ", residue, make("span", { class: "dim" }, " (in flight while messages come; 0 at rest)"));
    const terms = (pairs) => pairs.map(([name, value]) => `${name} ${count(value)}`).join(" + ");
    fill("identities", table(["of", "identity", "left", "right", "#residue"], identities.map((identity) => [
      identity.of, identity.name, terms([identity.left]), terms(identity.right),
      [count(identity.residue), { class: identity.residue ? "warn" : "" }],
    ])));
  }

  function feeds(capture) {
    const all = list(capture.feeds).map((feed) => {
      const name = feed.feed;
      const live = list(feed.sides_live);
      // The end of a file is no silence.
      const [state, look] = feed.from_files ? ["at its end", "dim"] : ["silent", "bad"];
      const sides = list(feed.sides).map((side, at) => make("span", { class: live[at] ? "good" : look }, ` ${side} ${live[at] ? "live" : state} `));
      const lost = feed.lost_link_full + feed.lost_copy_pool;
      const shown = streams(feed).slice(-STREAMS_MAX);
      const left = streams(feed).length - shown.length;
      const numbers = table(["stream", "#messages", "#lost on every side", "#in gaps", "#duplicates", "#late", "#held"], shown.map((stream) => [
        `${stream.stream} (run ${stream.run}${stream.closed ? ", closed" : ""})`, field(`stream/${stream.stream}/emitted`, stream.unique + stream.late_fill),
        wrong(`stream/${stream.stream}/gap`, stream.gap), count(list(stream.gaps).length), count(stream.duplicate), count(stream.late), count(stream.held),
      ]));
      const bySide = table(["stream", "side", "#lost", "#gaps", "#recovered", "#reordered", "#first"], shown.flatMap((stream) => list(stream.sides).map((side) => [
        stream.stream, side.side, field(`stream/${stream.stream}/${side.side}/lost`, side.lost), count(list(side.gaps).length), count(side.recovered), count(side.reordered), count(side.wins),
      ])));
      return make("div", {}, make("h3", {}, name, ...sides),
        make("p", {}, make("strong", { "data-field": `feed/${name}/emitted`, "data-value": String(emitted(feed)) }, count(emitted(feed))), " messages emitted, ",
          make("span", { class: lost ? "bad" : "" }, `${count(lost)} not handed to the store`),
          feed.publish ? `, ${count(feed.published)} published, ${count(feed.publish_refused)} refused by the ring` : ""),
        shown.length ? numbers : nothing("No stream yet."), shown.length ? bySide : "",
        left > 0 ? nothing(`and ${left} older streams: see /status`) : "");
    });
    fill("feeds", ...(all.length ? all : [nothing("This process captures no feed.")]));
  }

  // Neighbouring buckets joined to at most BARS_MAX bars.
  function bars(buckets) {
    const joined = Math.max(1, Math.ceil(buckets.length / BARS_MAX));
    const result = [];
    for (let at = 0; at < buckets.length; at += joined) {
      const part = buckets.slice(at, at + joined);
      result.push([part[0][0], part[part.length - 1][0], part.reduce((sum, [, value]) => sum + value, 0)]);
    }
    return result;
  }

  function chart(name, summary, buckets) {
    const shown = bars(buckets);
    const highest = Math.max(1, ...shown.map(([, , value]) => value));
    const width = 100 / Math.max(1, shown.length);
    const rects = shown.map(([from, to, value], at) => {
      const height = (value / highest) * 56;
      return make("rect", { x: at * width, y: 58 - height, width: width * 0.9, height },
        make("title", {}, `${bucketed(from)} to ${bucketed(to)}: ${count(value)}`));
    });
    const words = `p50 ${bucketed(summary.p50_ns)}, p99 ${bucketed(summary.p99_ns)}, p99.9 ${bucketed(summary.p999_ns)}, from ${nanos(summary.min_ns)} to ${nanos(summary.max_ns)}, ${count(summary.samples)} samples`;
    return make("figure", { class: "chart" }, make("h3", {}, name), make("svg", { viewBox: "0 0 100 60", preserveAspectRatio: "none", role: "img", "aria-label": words }, ...rects), make("figcaption", {}, words));
  }

  function latency(capture) {
    const charts = list(capture.feeds).flatMap((feed) => streams(feed).slice(-4).flatMap((stream) => {
      const of = `${feed.feed}: ${stream.stream}`;
      const own = list(stream.sides).filter((side) => side.capture_minus_send.samples)
        .map((side) => chart(`${of}, side ${side.side}: capture − send`, side.capture_minus_send, list(side.capture_minus_send_buckets)));
      const lead = stream.lead_a_over_b.samples ? [chart(`${of}: A before B by`, stream.lead_a_over_b, list(stream.lead_buckets))] : [];
      return [...own, ...lead];
    }));
    fill("latency", charts.length ? make("div", { class: "charts" }, ...charts) : nothing("No latency has been measured."));
  }

  function stores(all) {
    if (!all.length) return fill("stores", nothing("This process keeps no store."));
    const rows = all.map((store) => [
      store.store, store.path, field(`store/${store.store}/stored`, store.stored), wrong(`store/${store.store}/lost`, store.lost), count(store.in_flight),
      bytes(store.written_bytes), count(store.sealed_segments), count(store.durable_arrival),
      [store.full ? "full" : "no", { class: store.full ? "bad" : "" }],
      wrong(`store/${store.store}/failed`, store.failed_blocks + store.failed_syncs + store.failed_seals),
    ]);
    const words = all.flatMap((store) => list(store.told).slice(-5).map((line) => make("li", {}, `${store.store}: ${line}`)));
    const lost = all.flatMap((store) => list(store.losses).slice(-5).map((loss) => make("li", { class: "bad" }, `${store.store}: lost (${loss.cause}) ${loss.stream} ${loss.first}..${loss.last}`)));
    fill("stores", table(["store", "path", "#stored", "#lost", "#in flight", "#written", "#sealed segments", "#durable up to", "full", "#failed"], rows),
      make("p", {}, "Retention: ", ...all.map((store) => make("span", {}, retained(store)))), make("ul", {}, ...lost, ...words));
    return undefined;
  }

  // What retention keeps of a store, as far as it is told.
  function retained(store) {
    const known = (value) => Number.isFinite(value);
    const parts = [
      known(store.kept_segments) ? `${count(store.kept_segments)} segments kept` : "",
      known(store.kept_bytes) ? `${bytes(store.kept_bytes)} on the disk` : "",
      known(store.free_bytes) ? `${bytes(store.free_bytes)} of ${bytes(store.total_bytes)} free` : "",
      known(store.deleted_bytes) ? `${bytes(store.deleted_bytes)} deleted by retention` : "",
      store.bounds ? `bounds: retain ${bound(store.bounds.bytes_max, bytes)}, retain_age ${bound(store.bounds.age_seconds_max, lasting)}, free_min ${bound(store.bounds.free_bytes_min, bytes)}` : "",
    ].filter(Boolean);
    return parts.length ? `${store.store}: ${parts.join(", ")}. ` : `${store.store}: records up to ${count(store.next_arrival)}. `;
  }

  function rings(ring) {
    const age = (seconds) => (Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : "never");
    const state = (mirror) => (!mirror.live ? "not connected" : mirror.silent ? "source silent" : mirror.producer_gone ? "producer gone" : `live, ${mirror.transport}`);
    const mirrors = list(ring.mirror).map((mirror) => [
      mirror.name, mirror.source, [state(mirror), { class: mirror.live && !mirror.silent && !mirror.producer_gone ? "good" : "bad" }],
      field(`mirror/${mirror.name}/next`, mirror.next), field(`mirror/${mirror.name}/lag`, mirror.lag), wrong(`mirror/${mirror.name}/gap_records`, mirror.gap_records),
      count(mirror.naks), count(mirror.repaired_records), age(mirror.heartbeat_age_seconds),
    ]);
    fill("mirrors", mirrors.length
      ? table(["mirror", "source", "state", "#next", "#lag", "#records left out", "#naks", "#repaired", "#last heard"], mirrors)
      : nothing("This process mirrors no ring."));
    const serves = list(ring.serve);
    const producer = (serve) => (!serve.attached ? "no ring" : serve.producer_stalled ? "producer stalls" : serve.producer_alive ? "producer lives" : "producer not known to live");
    const rows = serves.map((serve) => [
      serve.name, serve.ring, serve.address || "–", [producer(serve), { class: serve.attached && serve.producer_alive ? "good" : "warn" }],
      field(`serve/${serve.name}/head`, serve.head), count(serve.connections), count(serve.naks), count(serve.gaps),
    ]);
    const sessions = serves.flatMap((serve) => list(serve.sessions).map((session) => [
      serve.name, session.peer, session.delivery || "handshake", count(session.next), count(Math.max(0, serve.head + 1 - session.next)),
    ]));
    fill("serves", rows.length ? table(["server", "ring", "address", "state", "#head", "#connections", "#naks", "#gaps"], rows) : nothing("This process serves no ring."),
      sessions.length ? table(["server", "mirror", "by", "#next", "#lag"], sessions) : "");
    // Readers that do not register are not seen.
    const readers = [...list(ring.published), ...list(ring.mirror)].filter((of) => Number.isFinite(of.readers)).map((of) => [
      of.ring, field(`readers/${of.ring}/count`, of.readers), field(`readers/${of.ring}/slowest_lag`, of.slowest_reader_lag),
    ]);
    fill("readers", readers.length ? table(["ring", "#registered readers", "#lag of the slowest, records"], readers) : "");
  }

  function ledger(status) {
    if (!status) return fill("ledger", nothing("This process serves no ledgers."));
    const failed = status.no_space + status.disk_failed + status.unwritten_dropped + status.lost_ledgers;
    const pairs = [
      ["source", status.source], ["address", status.address || "–"], ["run", status.run], ["state", status.ended || "running"],
      ["ledgers kept", `${count(status.oldest)} to ${count(status.latest)}`, { "data-field": "ledger/latest", "data-value": String(status.latest) }],
      ["durable up to", count(status.durable)], ["published", count(status.ledgers)],
      ["compression", status.compression_ratio ? `${status.compression_ratio.toFixed(2)} : 1` : "–"],
      ["subscribers", `${count(status.subscribers)}, ${count(status.live)} live`], ["slowest live subscriber", status.slowest ? `${bytes(status.slowest)}/s` : "–"],
      ["lag of subscribers: median, p99, slowest", make("span", {}, told("ledger/median_lag", status.median_lag), ", ", told("ledger/p99_lag", status.p99_lag), ", ", told("ledger/slowest_lag", status.slowest_lag), " ledgers")],
      ["on its way to subscribers", bytes(status.sending_bytes)], ["given up as too slow", count(status.live_abandons + status.write_timeouts)],
      ["failed writes and lost ledgers", count(failed), failed ? { class: "bad" } : {}],
    ];
    const bounds = status.bounds;
    if (bounds) pairs.push(["bounds", `retention ${count(bounds.ledgers_max)}, retention_bytes ${bound(bounds.bytes_max, bytes)}, retention_age ${bound(bounds.age_seconds_max, lasting)}`]);
    if (status.from) pairs.push(["last emission took", nanos(status.from.emission_ns)]);
    if (status.relay) pairs.push(["upstream", status.relay.connected ? "connected" : "not connected", status.relay.connected ? {} : { class: "bad" }]);
    fill("ledger", table(["what", "now"], pairs.map(([name, text, attributes = {}]) => [name, [text, attributes]])));
    return undefined;
  }

  function vitals(process, about) {
    if (!process) return fill("process", nothing("Nothing is known of the process yet."));
    const clock = process.clock || {};
    const seconds = (value) => (Number.isFinite(value) ? nanos(value * 1e9) : "not known");
    const state = clock.synchronized === true ? ["synchronised", { class: "good" }]
      : [clock.readable ? "not synchronised" : "not known: adjtimex is refused", { class: "warn" }];
    const rows = [
      ["version", process.version], ["process", make("span", { "data-field": "process/pid", "data-value": String(process.pid) }, String(process.pid))],
      ["user", process.user || process.user_id], ["up", lasting(about.uptime_seconds)],
      ["memory", `${bytes(process.resident_bytes)} resident`], ["threads", count(process.threads)],
      ["descriptors", `${count(process.descriptors)} of ${count(process.descriptors_max)}`],
      ["clock", state], ["clock is off by", `${seconds(clock.estimated_error_seconds)}, at most ${seconds(clock.maximum_error_seconds)}`],
      ["TAI − UTC", clock.tai_offset_known ? [`${clock.tai_offset_seconds} s`, {}] : ["not set", { class: "warn" }]],
      ["clock was stepped", clock.steps ? `${count(clock.steps)} times, last by ${clock.last_step_seconds} s` : "never"],
    ];
    fill("process", table(["what", "now"], rows));
    return undefined;
  }

  function cores(about) {
    const rows = list(about.cores).map((core) => [core.name, core.cpu, core.idle, list(core.workers).join(", ") || "no worker"]);
    fill("cores", rows.length ? table(["core", "#cpu", "idle", "workers"], rows) : nothing("No core is started."));
  }

  function show(status) {
    head(status);
    flow(status);
    books(status.capture || {});
    feeds(status.capture || {});
    latency(status.capture || {});
    stores(list(status.stores));
    rings(status.ring || {});
    ledger(status.ledger);
    vitals(status.process, status.appliance || {});
    cores(status.appliance || {});
  }

  // --- polling -------------------------------------------------------------------------------------------------------

  function remember(status) {
    const process = status.appliance ? status.appliance.pid : null;
    if (history.length && history[history.length - 1].process !== process) {
      history.length = 0;
      curves.clear();
    }
    history.push({ at: performance.now(), process, counts: counted(status) });
    if (history.length > RATE_SAMPLES + 1) history.shift();
    for (const id of history[history.length - 1].counts.keys()) {
      const values = curves.get(id) || [];
      values.push(rate(id) || 0);
      curves.set(id, values.slice(-CURVE_SAMPLES));
    }
  }

  // Says so, plainly, for as long as the appliance does not answer.
  function tellSilence() {
    const silent = document.getElementById("silent");
    silent.hidden = failure === null;
    document.body.classList.toggle("stale", failure !== null);
    document.title = failure === null ? "sluice" : "sluice: no answer";
    if (failure === null) return;
    const since = answered === null ? "It has not answered yet." : `Its last answer came ${lasting((Date.now() - answered) / 1000)} ago; the numbers below are that old.`;
    silent.textContent = `The appliance does not answer (${failure}). ${since}`;
    const state = document.getElementById("state");
    state.textContent = "no answer";
    state.className = "badge bad";
  }

  async function poll() {
    const stop = new AbortController();
    const bound = setTimeout(() => stop.abort(), ANSWER_MS_MAX);
    try {
      const answer = await fetch("status", { signal: stop.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const status = await answer.json();
      [answered, failure] = [Date.now(), null];
      return status;
    } catch (error) {
      failure = error.name === "AbortError" ? `no answer within ${ANSWER_MS_MAX / 1000} s` : error.message;
      return null;
    } finally {
      clearTimeout(bound);
      tellSilence();
    }
  }

  // A page that nobody looks at asks nothing.
  async function run() {
    setTimeout(run, POLL_MS);
    if (document.hidden || asking) return;
    asking = true;
    const status = await poll();
    asking = false;
    if (status === null) return;
    remember(status);
    show(status);
  }

  addEventListener("resize", draw);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) history.length = 0;
  });
  run();
})();

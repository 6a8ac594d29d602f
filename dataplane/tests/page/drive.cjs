// Opens the status page of a running appliance and asserts what a person would see. Each part prints "ok NAME".
// node drive.cjs MODULES CHROMIUM URL PROCESS NAME SHOTS
"use strict";
const assert = require("node:assert/strict");
const path = require("node:path");
const { createRequire } = require("node:module");

const [modules, chromiumPath, url, processText, feedName, shots] = process.argv.slice(2);
const { chromium } = createRequire(path.join(modules, "package.json"))("playwright-core");
const appliance = Number(processText);

// What must come may take so long: 20 times what it takes.
const PATIENCE_MS = 30000;

async function until(what, look) {
  const end = Date.now() + PATIENCE_MS;
  let last;
  for (;;) {
    try {
      return await look();
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) throw new Error(`not within ${PATIENCE_MS} ms: ${what}: ${last.message}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

// A page that remembers everything that must not happen.
async function open(browser, width, colorScheme, answer) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => request.url().startsWith(url) || wrong.push(`request to ${request.url()}`));
  await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective}`)));
  if (answer) await page.route("**/status", (route) => route.fulfill({ json: answer }));
  await page.goto(url);
  return { context, page, wrong };
}

// Every field that the page must show, from the status itself.
function expected(status) {
  const fields = new Map([["residue", status.capture.residue]]);
  for (const feed of status.capture.feeds) {
    let emitted = 0;
    for (const stream of feed.report.streams) {
      emitted += stream.unique + stream.late_fill;
      fields.set(`stream/${stream.stream}/emitted`, stream.unique + stream.late_fill);
      fields.set(`stream/${stream.stream}/gap`, stream.gap);
      for (const side of stream.sides) fields.set(`stream/${stream.stream}/${side.side}/lost`, side.lost);
    }
    fields.set(`feed/${feed.feed}/emitted`, emitted);
  }
  for (const store of status.stores) {
    fields.set(`store/${store.store}/stored`, store.stored);
    fields.set(`store/${store.store}/lost`, store.lost);
  }
  for (const mirror of status.ring.mirror) {
    fields.set(`mirror/${mirror.name}/next`, mirror.next);
    fields.set(`mirror/${mirror.name}/lag`, mirror.lag);
  }
  for (const of of [...status.ring.published, ...status.ring.mirror]) {
    fields.set(`readers/${of.ring}/count`, of.readers);
    fields.set(`readers/${of.ring}/slowest_lag`, of.slowest_reader_lag);
  }
  for (const lag of ["median_lag", "p99_lag", "slowest_lag"]) fields.set(`ledger/${lag}`, status.ledger[lag]);
  for (const serve of status.ring.serve) fields.set(`serve/${serve.name}/head`, serve.head);
  return fields;
}

async function shows(page) {
  return until("the page's numbers are the status's", async () => {
    const status = await (await fetch(`${url}status`)).json();
    const shown = new Map(await page.$$eval("[data-field]", (nodes) => nodes.map((node) => [node.dataset.field, [node.dataset.value, node.textContent]])));
    const wanted = expected(status);
    assert.ok(wanted.size > 10 && wanted.get(`feed/${feedName}/emitted`) > 1000);
    for (const [field, value] of wanted) {
      assert.deepEqual(shown.get(field), [String(value), value.toLocaleString("en-US")], field);
    }
    assert.ok(Number(shown.get("ledger/latest")[0]) > 1);
    assert.equal(Number(shown.get("process/pid")[0]), appliance);
    return status;
  });
}

// Nothing is wider than the window, and every text can be told from its ground (WCAG 2: 4.5 to 1).
async function readable(page) {
  const found = await page.evaluate(() => {
    const rgb = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
    const light = (text) => {
      const [r, g, b] = rgb(text).map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
      for (let at = node; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        if (!/, 0\)|transparent/.test(colour)) return colour;
      }
      return "rgb(255, 255, 255)";
    };
    const wide = [...document.querySelectorAll("body *")].filter((node) => !node.closest("svg") && node.getBoundingClientRect().right > innerWidth + 0.5);
    const faint = [...document.querySelectorAll("body *")].filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())).map((node) => {
      const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 80)];
    }).filter(([contrast]) => contrast < 4.5);
    return {
      scroll: document.documentElement.scrollWidth, inner: innerWidth, wide: wide.map((node) => node.outerHTML.slice(0, 120)), faint,
      ground: getComputedStyle(document.body).backgroundColor,
    };
  });
  assert.ok(found.scroll <= found.inner, `${found.scroll} > ${found.inner}`);
  assert.deepEqual(found.wide, []);
  assert.deepEqual(found.faint, []);
  return found.ground;
}

async function looks(browser) {
  const grounds = new Set();
  for (const [width, scheme] of [[1280, "light"], [1280, "dark"], [360, "light"], [360, "dark"]]) {
    const { context, page, wrong } = await open(browser, width, scheme);
    const status = await shows(page);
    grounds.add(await readable(page));
    await until("it is healthy", async () => assert.equal(await page.textContent("#state"), "healthy"));
    await until("the ledgers have a rate", async () => {
      assert.match(await page.textContent('[data-node="ledger source"] .rate'), /[1-9].*\/s/);
    });
    const nodes = await page.$$eval("[data-node]", (all) => all.map((node) => node.dataset.node));
    assert.deepEqual(new Set(nodes), new Set(status.appliance.nodes.map((node) => node.id)));
    const lines = await page.$$eval("#lines path", (all) => all.length);
    assert.equal(lines, status.appliance.edges.length);
    assert.ok((await page.$$("#latency rect")).length > 10, "histograms");
    assert.equal(await page.locator("#identities tbody tr").count(), status.capture.conservation.length);
    for (const [section, words] of [["#stores", "bounds: retain 64 MiB, retain_age 90 min, free_min 1.0 MiB"], ["#ledger", "retention 500, retention_bytes none"], ["#process", status.process.user], ["#process", "TAI − UTC"]]) {
      assert.ok((await page.textContent(section)).includes(words), `${section}: ${words}: ${await page.textContent(section)}`);
    }
    // The feed's name is markup, and is shown as the text that it is.
    assert.ok((await page.textContent("#feeds h3")).includes(feedName));
    assert.equal(await page.evaluate(() => document.images.length), 0);
    assert.deepEqual(wrong, []);
    await page.screenshot({ path: path.join(shots, `page-${width}-${scheme}.png`), fullPage: true });
    await context.close();
    console.log(`ok ${width} ${scheme}`);
  }
  assert.equal(grounds.size, 2, `light and dark have grounds of their own: ${[...grounds]}`);
}

// Every text of the status replaced by markup: none of it becomes an element.
async function hostile(browser) {
  const markup = '<img src=x onerror="window.hurt = 1"><script>window.hurt = 2</script>';
  const hurt = (value, key) => {
    if (typeof value === "string") return ["level", "stage", "kind"].includes(key) ? value : `${markup}${value}`;
    if (Array.isArray(value)) return value.map((part) => hurt(part));
    return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, part]) => [name, hurt(part, name)])) : value;
  };
  const status = await (await fetch(`${url}status`)).json();
  status.health = { healthy: false, ready: false, stage: "running", reasons: [{ level: "unhealthy", reason: "x", what: "y", count: 1, for_seconds: 5 }] };
  const { context, page, wrong } = await open(browser, 360, "dark", hurt(status));
  await until("the status is shown", async () => assert.ok((await page.textContent("#reasons")).includes("<img src=x onerror")));
  for (const section of ["#columns", "#feeds", "#stores", "#mirrors", "#serves", "#ledger", "#process", "#cores", "#latency", "#identities"]) {
    assert.ok((await page.textContent(section)).includes("<img src=x onerror"), section);
  }
  assert.equal(await page.textContent("#state"), "unhealthy");
  assert.equal(await page.evaluate(() => window.hurt), undefined);
  assert.equal(await page.evaluate(() => document.images.length + document.querySelectorAll("main script").length), 0);
  await readable(page);
  assert.deepEqual(wrong, []);
  await context.close();
  console.log("ok hostile text");
}

async function empty(browser) {
  const { context, page, wrong } = await open(browser, 360, "light", { health: { stage: "starting", healthy: true, ready: false, reasons: [] }, capture: { feeds: [], conservation: [] } });
  await until("the status is shown", async () => assert.equal(await page.textContent("#state"), "starting"));
  for (const [section, words] of [["#feeds", "captures no feed"], ["#stores", "keeps no store"], ["#mirrors", "mirrors no ring"], ["#serves", "serves no ring"], ["#ledger", "serves no ledgers"]]) {
    assert.ok((await page.textContent(section)).includes(words), section);
  }
  await readable(page);
  assert.deepEqual(wrong, []);
  await context.close();
  console.log("ok nothing of any job");
}

// A process that hangs, comes back, and is killed.
async function silent(browser) {
  const { context, page } = await open(browser, 360, "light");
  await shows(page);
  const tells = (words) => until(`the page says "${words}"`, async () => {
    assert.ok(await page.isVisible("#silent"));
    assert.ok((await page.textContent("#silent")).includes(words), await page.textContent("#silent"));
    assert.equal(await page.textContent("#state"), "no answer");
    assert.equal(await page.title(), "sluice: no answer");
  });
  process.kill(appliance, "SIGSTOP");
  await tells("no answer within 4 s");
  process.kill(appliance, "SIGCONT");
  await until("the page goes on", async () => assert.ok(!(await page.isVisible("#silent"))));
  process.kill(appliance, "SIGKILL");
  await tells("The appliance does not answer (Failed to fetch). Its last answer came");
  await readable(page);
  await context.close();
  console.log("ok silence");
}

(async () => {
  const browser = await chromium.launch({ executablePath: chromiumPath, args: ["--no-sandbox"] });
  try {
    await looks(browser);
    await hostile(browser);
    await empty(browser);
    await silent(browser);
  } finally {
    await browser.close();
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

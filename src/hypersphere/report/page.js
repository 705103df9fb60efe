"use strict";
// Sort tables; after the first paint start plotly.js and draw the charts, those in view first.
(() => {
  const MOST_WEBGL = 12; // live 3-D charts: browsers drop WebGL contexts beyond about 16
  const LONGEST_LOAD = 8000; // milliseconds
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Tables

  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.value;
    if (value !== undefined) return Number(value);
    return cell.classList.contains("number") ? NaN : cell.textContent;
  };
  const isMissing = (value) => Number.isNaN(value) || value === "";
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  const sortTable = (header) => {
    const body = header.closest("table").tBodies[0], column = header.cellIndex;
    const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const each of header.parentNode.cells) each.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => isMissing(a) - isMissing(b) || (isMissing(a) ? 0 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };
  for (const header of document.querySelectorAll("th")) header.onclick = () => sortTable(header);

  // Downloads: tables as they are sorted now, and the points of charts

  const element = (name, fields) => Object.assign(document.createElement(name), fields);
  const cellOf = (value) => {
    let text = String(value ?? "");
    if (typeof value !== "number" && /^[=+@\t\r-]/.test(text)) text = `'${text}`; // a spreadsheet would take it for a formula
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const download = (name, rows) => {
    const text = rows.map((row) => row.map(cellOf).join(",") + "\r\n").join("");
    const href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" })); // the mark: Excel reads UTF-8
    element("a", { href, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "data"}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60000);
  };
  const addDownload = (node, place, name, rows) =>
    node[place](element("button", { type: "button", className: "csv", textContent: "CSV", title: "Download as CSV", onclick: () => download(name(), rows()) }));
  const valueOf = (cell) => (cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value));
  for (const table of document.querySelectorAll(".table")) {
    const title = () => `${table.closest("section")?.querySelector("h2").textContent ?? document.title} ${table.previousElementSibling?.matches(".caption") ? table.previousElementSibling.textContent : ""}`;
    addDownload(table, "after", title, () => [...table.querySelectorAll("tr")].map((row) => [...row.cells].map(valueOf)));
  }

  const KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array };
  const unpacked = (values) => {
    if (values?.bdata === undefined) return values ?? [];
    const numbers = [...new KINDS[values.dtype](Uint8Array.from(atob(values.bdata), (letter) => letter.charCodeAt(0)).buffer)];
    return values.dtype === "f4" ? numbers.map((value) => Number(value.toPrecision(7))) : numbers;
  };
  const plainText = (text) => new DOMParser().parseFromString(text ?? "", "text/html").body.textContent;
  const pointsOf = (figure, columns) => {
    const rows = [columns];
    for (const trace of figure.data) {
      if (trace.showlegend === false || trace.hoverinfo === "skip") continue;
      const [x, y, more] = ["x", "y", "customdata"].map((part) => unpacked(trace[part]));
      x.forEach((value, i) => rows.push([plainText(trace.name), value, y[i], more[i]].slice(0, columns.length)));
    }
    return rows;
  };

  // Theme: colours "@index/alpha" of a figure, and the defaults of axes and texts

  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const rgba = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  const resolve = (value, name) => {
    if (typeof value === "string") {
      const match = /color/i.test(name) && /^@(\d+|line)\/([\d.e-]+)$/.exec(value);
      return match ? rgba(style(match[1] === "line" ? "--line" : `--c${match[1] % 7}`), match[2]) : value;
    }
    if (Array.isArray(value)) return value.map((each) => resolve(each, name));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([inner, each]) => [inner, resolve(each, inner)]));
  };
  const template = () => {
    const text = style("--text"), grid = style("--grid"), line = style("--line"), card = style("--card");
    const axis = { gridcolor: grid, zerolinecolor: line, linecolor: line, automargin: true, title: { standoff: 8 } };
    const axis3d = { gridcolor: line, zerolinecolor: line, linecolor: line, backgroundcolor: card, showbackground: false };
    return {
      layout: {
        font: { color: text, family: "system-ui, Helvetica, Arial, sans-serif", size: 13 },
        title: { x: 0.02, xanchor: "left", font: { size: 15 } },
        paper_bgcolor: card, plot_bgcolor: card, colorway: [0, 1, 2, 3, 4, 5, 6].map((i) => style(`--c${i}`)),
        hoverlabel: { bgcolor: card, bordercolor: line, font: { color: text } },
        legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, bgcolor: rgba(card, 0.6), itemsizing: "constant" },
        margin: { l: 55, r: 15, t: 45, b: 50 },
        xaxis: axis, yaxis: axis,
        scene: { xaxis: axis3d, yaxis: axis3d, zaxis: axis3d, aspectmode: "data", camera: { eye: { x: 1.3, y: 1.3, z: 0.8 } } },
      },
    };
  };

  // Charts

  const charts = [...document.querySelectorAll(".chart")].map((node) => ({
    node, plot: node.querySelector(".plot"), webgl: "webgl" in node.dataset, visible: false, live: false, forced: false, seen: 0, turn: 0,
  }));
  let clock = 0;
  const figureOf = (chart) => (chart.figure ??= JSON.parse(document.getElementById(chart.node.dataset.figure).textContent));

  for (const chart of charts) {
    if (!chart.node.dataset.csv) continue;
    const title = () => plainText(figureOf(chart).layout?.title?.text);
    addDownload(chart.node, "append", title, () => pointsOf(figureOf(chart), JSON.parse(chart.node.dataset.csv)));
  }

  const show = (chart, state, ...content) => {
    chart.node.dataset.state = state;
    if (content.length) chart.plot.replaceChildren(...content);
  };
  const wait = (chart) => show(chart, "waiting", element("p", { textContent: "The chart is being drawn." }));

  const draw = async (chart) => {
    const { data, layout } = resolve(figureOf(chart), "");
    if (chart.camera) layout.scene = { ...layout.scene, camera: chart.camera };
    layout.template = template();
    if (chart.webgl) layout.margin = { l: 0, r: 0, t: 40, b: 0, ...layout.margin };
    layout.height = chart.plot.clientHeight;
    if (matchMedia("(pointer: coarse)").matches && !chart.webgl) layout.dragmode = false; // a finger scrolls the page
    if (!chart.live) chart.plot.replaceChildren();
    chart.live = true;
    const turn = ++chart.turn;
    try {
      await Plotly.react(chart.plot, data, layout, { displaylogo: false, responsive: true, scrollZoom: false });
      if (chart.turn === turn) show(chart, "drawn");
    } catch (error) {
      if (chart.turn !== turn) return; // released meanwhile
      chart.live = false;
      show(chart, "failed", element("p", { textContent: `This chart could not be drawn: ${error.message}` }));
      console.error(error);
    }
  };

  // A picture of the chart takes its place until it comes into view again, turned as it was.
  const release = (chart) => {
    const canvas = chart.plot.querySelector("canvas"), scene = chart.plot._fullLayout?.scene?._scene;
    const still = element("div", { className: "js-plotly-plot" }); // for plotly's own style
    if (scene) {
      still.append(chart.plot.querySelector(".plot-container").cloneNode(true));
      const picture = element("img", { src: scene.toImage("png"), alt: "" });
      picture.style.cssText = canvas.style.cssText;
      still.querySelector("canvas").replaceWith(picture);
    }
    chart.camera = scene?.getCamera() ?? chart.camera;
    chart.live = false;
    ++chart.turn;
    Plotly.purge(chart.plot);
    if (canvas) (canvas.getContext("webgl2") ?? canvas.getContext("webgl"))?.getExtension("WEBGL_lose_context")?.loseContext();
    show(chart, "released", still);
  };

  const wanted = async (chart) => {
    const live = charts.filter((each) => each.webgl && each.live);
    if (chart.webgl && live.length >= MOST_WEBGL) {
      const free = live.filter((each) => chart.forced || !each.visible).sort((a, b) => a.seen - b.seen)[0];
      if (!free) {
        const onclick = () => (wait(chart), (chart.forced = true), drawAll());
        show(chart, "full", element("button", { type: "button", textContent: "Draw this 3-D chart", onclick }));
        return;
      }
      release(free);
    }
    chart.forced = false;
    await draw(chart);
  };
  // Those in view first. All others too: a picture of the whole page shows them. 3-D charts come last, while there is room.
  const next = () => {
    const rest = charts.filter((each) => !each.live && /waiting|released/.test(each.node.dataset.state));
    const room = charts.filter((each) => each.webgl && each.live).length < MOST_WEBGL;
    const never = rest.filter((each) => each.node.dataset.state === "waiting" && (!each.webgl || room));
    return (
      rest.find((each) => each.forced) ?? rest.find((each) => each.visible) ??
      never.find((each) => !each.webgl) ?? never[0]
    );
  };
  // One at a time: a chart must not be released while it is drawn.
  let queue = Promise.resolve();
  const enqueue = (work) => (queue = queue.then(work).catch((error) => console.error(error)));
  const pause = (time = 0) => new Promise((done) => setTimeout(done, time)); // the page stays responsive
  const drawAll = () =>
    enqueue(async () => {
      for (let chart = next(); chart; chart = next()) await wanted(chart).then(() => pause());
    });

  const unpack = async () => {
    const packed = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  const start = async () => {
    // An open document inside delays the load event: whoever waits for it to print or to take a picture gets the charts.
    const holder = document.body.appendChild(element("iframe", { hidden: true }));
    holder.contentDocument.open();
    try {
      await pause(); // the first paint
      document.head.append(element("script", { textContent: await unpack() }));
      watch();
      await Promise.race([drawAll(), pause(LONGEST_LOAD)]);
    } catch (error) {
      for (const chart of charts) show(chart, "failed", element("p", { textContent: "Charts need a browser of 2023 or later." }));
      console.error(error);
    } finally {
      holder.contentDocument.close();
      holder.remove();
    }
  };

  const watch = () => {
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = charts.find((each) => each.node === entry.target);
        chart.visible = entry.isIntersecting;
        if (chart.visible) chart.seen = ++clock;
      }
      for (const chart of charts) if (chart.visible && chart.node.dataset.state === "full") wait(chart); // is there room now?
      drawAll();
    }, { rootMargin: "150px 0px" });
    for (const chart of charts) observer.observe(chart.node);
    const redraw = () => {
      for (const chart of charts) {
        if (chart.live) enqueue(() => chart.live && draw(chart));
        else wait(chart); // its picture has the other colours
      }
      drawAll();
    };
    // Printing may change the scheme meanwhile; the pictures for paper stay, and afterprint draws anew.
    dark.addEventListener("change", () => root.classList.contains("printing") || redraw());
    // Paper is white and of one width, and nothing waits for a promise here. 3-D charts become pictures.
    addEventListener("beforeprint", () => {
      root.classList.add("printing");
      for (const chart of charts) {
        draw(chart);
        if (chart.webgl) release(chart);
      }
    });
    addEventListener("afterprint", () => {
      root.classList.remove("printing");
      redraw();
    });
  };

  charts.forEach(wait);
  if (charts.length) start();
})();

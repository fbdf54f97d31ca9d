// The graph of streams, processors, logs and pipelines, in layers from left to right.
import { compact, duration, make, put, shown } from "./words.js";

const WIDTH = 150, HEIGHT = 46, GAP_X = 130, GAP_Y = 22, SVG = "http://www.w3.org/2000/svg";
const section = document.getElementById("graph");
let built = "", labels = [];

function svg(kind, attributes, parent, text = "") {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = shown(text);
  parent.append(element);
  return element;
}

// Between a processor and its pipelines stands its acked log.
function parts(edges, streams) {
  const nodes = new Map(), links = [];
  const known = (id, kind, name) => nodes.get(id) ?? nodes.set(id, { id, kind, name, in: [] }).get(id);
  const link = (a, b, words, bad) => links.push({ a, b, words, bad }) && b.in.push(a);
  for (const name of Object.keys(streams)) known(name, "stream", name);
  for (const edge of edges) {
    const name = (id) => id.replace(/\(\)$/, ""), rate = `${compact(edge.per_second)}/s`;
    if (edge.kind === "reads") {
      const lag = edge.waiting ? `lag ${compact(edge.waiting)}` : "";
      link(known(edge.start, "stream", edge.start), known(edge.end, "processor", name(edge.end)), [rate, lag]);
    } else if (edge.kind === "sends") {
      const waits = edge.waiting ? `${compact(edge.waiting)} wait` : "";
      link(known(edge.start, "processor", name(edge.start)), known(edge.end, "stream", edge.end), [rate, waits]);
    } else {
      const start = known(edge.start, "processor", name(edge.start));
      const log = known(`log ${edge.start}`, "log", `log of ${name(edge.start)}`);
      if (!log.in.length) link(start, log, [rate, ""]);
      const read = edge.age_ms == null ? "has never read" : `read ${duration(edge.age_ms)} ago`;
      const pipeline = known(`spark ${edge.end}`, "pipeline", name(edge.end));
      const words = edge.is_known ? [`${compact(edge.waiting)} rows behind`, edge.failed || read] : ["", "position not read"];
      link(log, pipeline, words, Boolean(edge.failed) || !edge.is_known);
      pipeline.to = edge.to;
    }
  }
  return { nodes: [...nodes.values()], links };
}

// A node stands to the right of all that lead to it; an edge that closes a cycle leads back.
function layers(nodes) {
  const layer = new Map(), place = (node) => {
    if (layer.has(node)) return layer.get(node);
    layer.set(node, 0);
    layer.set(node, node.in.length ? 1 + Math.max(...node.in.map(place)) : 0);
    return layer.get(node);
  };
  nodes.forEach(place);
  const columns = [];
  for (const node of nodes) (columns[layer.get(node)] ??= []).push(node);
  return columns.map((column) => column ?? []);
}

export function draw(edges, streams) {
  const { nodes, links } = parts(edges, streams), key = JSON.stringify([nodes.map((node) => node.id), links.map(({ a, b }) => [a.id, b.id])]);
  if (key !== built) {
    built = key;
    section.querySelectorAll(".scroll, ul").forEach((each) => each.remove());
    build(nodes, links);
  }
  links.forEach(({ a, b, words, bad }, at) => {
    const { above, below, path, item } = labels[at];
    put(above, words[0]);
    put(below, words[1].length > 21 ? `${words[1].slice(0, 20)}…` : words[1]);
    path.classList.toggle("bad", Boolean(bad));
    put(item, `${a.name} → ${b.name}: ${words.filter(Boolean).join(", ")}`);
  });
}

function build(nodes, links) {
  const columns = layers(nodes), tall = Math.max(1, ...columns.map((column) => column.length));
  const box = make("div", "scroll"), list = make("ul", "list");
  const width = columns.length * (WIDTH + GAP_X) - GAP_X + 2, height = tall * (HEIGHT + GAP_Y) - GAP_Y + 2;
  const root = svg("svg", { width, height, viewBox: `-1 -1 ${width} ${height}`, "aria-hidden": "true" }, box);
  columns.forEach((column, x) => column.forEach((node, y) => {
    node.x = x * (WIDTH + GAP_X);
    node.y = (y + (tall - column.length) / 2) * (HEIGHT + GAP_Y);
  }));
  labels = links.map(({ a, b }) => {
    const x1 = a.x + WIDTH, y1 = a.y + HEIGHT / 2, x2 = b.x, y2 = b.y + HEIGHT / 2, bend = x2 > x1 ? (x2 - x1) / 2 : 80;
    const path = svg("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 4} ${y2}` }, root);
    svg("path", { class: "tip", d: `M${x2} ${y2}l-7 -4v8z` }, root);
    const y = b.in.length > 1 ? y1 : y2;  // Where no other edge has its words.
    const text = (dy) => svg("text", { x: (x1 + x2) / 2, y: y + dy, "text-anchor": "middle" }, root);
    const item = make("li");
    list.append(item);
    return { path, above: text(-5), below: text(13), item };
  });
  for (const node of nodes) {
    const group = svg("g", { class: node.kind, transform: `translate(${node.x} ${node.y})` }, root);
    svg("rect", { width: WIDTH, height: HEIGHT, rx: node.kind === "stream" ? 3 : HEIGHT / 2 }, group);
    const name = node.name.length > 20 ? `${node.name.slice(0, 19)}…` : node.name;
    svg("text", { x: WIDTH / 2, y: 20, "text-anchor": "middle", class: "name" }, group, name);
    svg("text", { x: WIDTH / 2, y: 36, "text-anchor": "middle" }, group, node.kind === "pipeline" ? "Spark" : node.kind);
    svg("title", {}, group, `${node.name} ${node.to ?? ""}`);
  }
  section.append(box, list);
}

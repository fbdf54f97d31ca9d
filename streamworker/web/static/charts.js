// Lag, rate and age of the last hour.
import { compact, duration, make, put, time } from "./words.js";

const HOUR_MS = 3_600_000, HEIGHT = 132;
const KINDS = [
  { title: "Lag", series: ["lag"], form: compact },
  { title: "In and out", series: ["arrived", "committed"], form: (n) => `${compact(n)}/s` },
  { title: "Oldest record waits", series: ["age"], form: duration },
];
const root = document.getElementById("charts");
let points = null, drawn = [];

const colour = (element) => getComputedStyle(element).color;

export function begin(first) {
  points = { ...first, t: first.t.map((ms) => ms / 1000) };
  build();
}

// Builds the charts anew: at the start, and when the colours change.
export function build() {
  drawn.forEach(({ plot }) => plot.destroy());
  root.replaceChildren();
  drawn = KINDS.map(({ title, series, form }) => {
    const figure = make("figure"), caption = make("figcaption", "", title), box = make("div", "plot", "", "img");
    figure.append(caption, box);
    root.append(figure);
    const marks = series.map((_, at) => caption.appendChild(make("b", `line-${at}`)));
    const dim = colour(caption), faint = getComputedStyle(figure).borderTopColor;
    const axis = { stroke: dim, font: "11px system-ui", grid: { stroke: faint, width: 1 }, ticks: { show: false } };
    const options = {
      width: Math.max(200, figure.clientWidth), height: HEIGHT, legend: { show: false }, padding: [6, 20, 0, 0],
      cursor: { sync: { key: "time" }, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { y: { range: (_, __, most) => [0, Math.max(1, (most ?? 0) * 1.1)] } },
      axes: [
        { ...axis, size: 24, space: 55, values: (_, times) => times.map((s) => time(s * 1000).slice(0, points.t.at(-1) - points.t[0] > 240 ? 5 : 8)) },
        { ...axis, size: 56, space: 28, values: (_, values) => values.map(form) },
      ],
      series: [{}, ...marks.map((mark) => ({ stroke: colour(mark), width: 1.5, points: { show: false } }))],
      hooks: { setCursor: [(plot) => told(plot.cursor.idx)] },
    };
    return { plot: new uPlot(options, data(series), box), figure, box, marks, series, form, title };
  });
  told(null);
}

const data = (series) => [points.t, ...series.map((name) => points[name])];

// Says the values at the cursor, or without one the present values.
function told(at) {
  for (const { marks, series, form, box, title } of drawn) {
    const said = series.map((name) => (points.t.length ? form(points[name][at ?? points.t.length - 1]) : "–"));
    marks.forEach((mark, place) => put(mark, ` ${said[place]}`));
    if (at === null) box.setAttribute("aria-label", `${title} over the last hour; now ${said.join(" and ")}`);
  }
}

export function add(group) {
  if (points.t.length && group.t / 1000 <= points.t.at(-1)) return;
  points.t.push(group.t / 1000);
  for (const name of ["lag", "arrived", "committed", "age"]) points[name].push(group[name]);
  let old = points.t.findIndex((s) => s * 1000 >= group.t - HOUR_MS);
  if (old > 0) Object.values(points).forEach((values) => values.splice(0, old));
  for (const { plot, series } of drawn) plot.setData(data(series));
  told(drawn[0].plot.cursor.idx ?? null);
}

export const from = () => points.t[0] * 1000;

new ResizeObserver(() => {
  for (const { plot, figure } of drawn)
    if (figure.clientWidth && plot.width !== figure.clientWidth) plot.setSize({ width: figure.clientWidth, height: HEIGHT });
}).observe(root);

// Asks the search of a site as its pages do, without a browser: node search.js WORKER INDEX < a query a line.
// Prints the places of what is found, best first, a JSON list a line.
const { readFileSync } = require("node:fs");
const [worker, index] = process.argv.slice(2);
const answers = [];
globalThis.self = { postMessage: (message) => answers.push(message) };
new Function("self", readFileSync(worker, "utf-8"))(globalThis.self);
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
async function ask(message) {
  const before = answers.length;
  self.onmessage({ data: message });
  while (answers.length === before) await settled();
  return answers.at(-1);
}
(async () => {
  const data = JSON.parse(readFileSync(index, "utf-8"));
  await ask({ type: 0, data });
  for (const input of readFileSync(0, "utf-8").trim().split("\n")) {
    const answer = await ask({ type: 2, data: { input, page: { id: 0, size: 10 } } });
    console.log(JSON.stringify(answer.data.items.map((item) => data.items[item.id].location)));
  }
})();

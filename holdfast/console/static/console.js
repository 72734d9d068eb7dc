"use strict";
// Only says that there is news: what a reader is at is not taken away, and what is typed is not lost.
const news = document.getElementById("news"), mark = document.body.dataset.mark;
function say(text, link) {
  if (news.dataset.text === text) return;
  news.dataset.text = text;
  news.textContent = text;
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = "./";
    anchor.textContent = link;
    news.append(" ", anchor);
  }
}
setInterval(() => fetch("mark", { cache: "no-store" }).then(answer => (answer.ok ? answer.text() : Promise.reject())).then(
  now => (now === mark ? say("") : say("Something has changed.", "Show it")),
  () => say("The console has ended: start it again to go on."),
), 2000);

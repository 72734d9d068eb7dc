// A page opened as a file may start no worker, so the search's one is played in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inside = frame.contentWindow, page = inside.document;
      page.open();
      page.write("<!doctype html><body>");
      page.close();
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      const worker = page.createElement("script");
      worker.src = url;
      const loaded = new Promise(done => { worker.onload = done; });
      page.body.append(worker);
      this.postMessage = data => loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}

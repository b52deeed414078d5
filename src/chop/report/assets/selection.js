// Which node is selected: one place, told to whoever listens and kept in the page's address.

/** `selection.set(name)` and `selection.listen(f)`; `#node=name` is the same as setting it. */
export class Selection {
  constructor() {
    this.name = null;
    this.listeners = [];
    addEventListener("hashchange", () => this.read());
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  /** Select a node. `options.isMoving` asks the graph to bring it into view. */
  set(name, options = {}) {
    this.name = name;
    const hash = name === null ? " " : `#node=${encodeURIComponent(name)}`;
    try {
      history.replaceState(null, "", name === null ? location.pathname + location.search : hash);
    } catch { /* a page within a notebook has no address */ }
    for (const listener of this.listeners) listener(name, options);
  }

  /** Take the selection from the page's address. */
  read() {
    const found = /^#node=(.+)$/.exec(location.hash);
    if (found) this.set(decodeURIComponent(found[1]), { isMoving: true, isLinked: true });
  }
}

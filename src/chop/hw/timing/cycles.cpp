// Cycle model of a network of processes: what chop.hw.timing.network.Reference does, compiled.
//
// A cycle: read the claims of every node, see which edges carry a beat, move every node. At full
// rate only nodes that moved in the last cycle are looked at, and whoever they offer a beat to or
// take one from: any other would do nothing again. A node whose next steps nobody outside can see
// sleeps through them. With stalls all nodes are looked at, in every cycle.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

constexpr int HEAD = 7;      // numbers of a node before its lists
constexpr int WHEEL = 1024;  // no node sleeps longer

struct Node {
  int inputs, outputs, latency, depth, steps, first, slides, stride;
  const int64_t *in, *out, *slots, *grain;
  const int32_t *table, *row, *quiet;
  std::vector<int64_t> levels, counts;
  std::vector<uint32_t> pipeline;  // what each stage brings to the outputs, a bit for each
  int at = 0, head = 0, flying = 0;
  int64_t high_water = 0, slept_at = -1, wakes_at = -1;
  bool has_room = true, is_here = false, can_step = false;
  bool is_silent = false;  // its last step changed nothing that others see
};

struct Draw {  // as in chop.hw.timing.stalls
  uint32_t state, threshold;
  int64_t burst, left;
  bool passes;
  bool next() {
    if (left == 0) {
      left = burst;
      state = state * 1664525u + 1013904223u;
      passes = (state >> 8) < threshold;
    }
    left--;
    return passes;
  }
};

struct Port {
  int64_t edge, wanted, count;
  uint32_t *times;
  Draw draw;
  bool offering;
};

struct Gate {
  int64_t before, behind;
  Draw draw;
  bool passes, held;
};

struct Network {
  std::vector<Node> nodes;
  std::vector<Port> sources, sinks;
  std::vector<Gate> gates;
  std::vector<uint8_t> valid, ready;
  std::vector<int> producer, consumer;  // of each edge; -1: a port or a gate
  std::vector<int> awake, moving, next;
  std::vector<std::vector<int>> wheel;  // who wakes, by cycle modulo WHEEL
  std::vector<int64_t> awake_at, moving_at;  // the cycle for which a node is in the list
  bool is_stalled;
  int64_t cycle = 0, last_beat = -1, sleepers = 0;

  bool fired(int64_t edge) const { return valid[edge] && ready[edge]; }

  // Whether `edge` offers a beat; who takes it may look at it together with others.
  void show(int64_t edge, bool offers) {
    if (valid[edge] == offers) return;
    valid[edge] = offers;
    int node = consumer[edge];
    if (node >= 0 && !is_stalled && awake_at[node] != cycle) {  // with stalls, all are awake
      awake_at[node] = cycle;
      awake.push_back(node);
    }
  }

  void offer(Node &n) {
    catch_up(n);
    bool is_here = true;
    for (int i = 0; i < n.inputs; i++) is_here &= n.levels[i] >= n.row[2 + i];
    n.has_room = true;
    if (n.depth) {
      for (int j = 0; j < n.outputs; j++) {
        n.has_room &= n.counts[j] < n.depth;
        show(n.out[j], n.counts[j] > 0);
      }
    } else {
      for (int j = 0; j < n.outputs; j++) show(n.out[j], is_here && (n.row[1] >> j & 1));
    }
    n.is_here = is_here;
    n.can_step = n.has_room && is_here;
  }

  void take(const Node &n) {
    int missing = 0;
    for (int i = 0; i < n.inputs; i++) missing += (n.row[0] >> i & 1) && !valid[n.in[i]];
    for (int i = 0; i < n.inputs; i++) {
      if (n.slots[i]) {
        ready[n.in[i]] = n.levels[i] + n.grain[i] <= n.slots[i];
      } else {
        bool others = missing == 0 || (missing == 1 && !valid[n.in[i]]);
        ready[n.in[i]] = n.can_step && (n.row[0] >> i & 1) && others;
      }
    }
  }

  // The steps that a node has slept through.
  void catch_up(Node &n) {
    if (n.slept_at < 0) return;
    int slept = int(cycle - n.slept_at);
    n.slept_at = -1;
    sleepers--;
    n.at += slept;
    if (n.at == n.steps) n.at = n.first;
    n.row = n.table + int64_t(n.at) * n.stride;
    if (n.latency) n.head = (n.head + slept) % n.latency;
  }

  // How many of the next cycles only change what nobody sees: quiet steps, nothing landing.
  int quiet_cycles(const Node &n) const {
    const int32_t *quiet = n.quiet + int64_t(n.at) * (1 + n.inputs);
    if (!n.depth || !n.has_room || !quiet[0]) return 0;
    for (int i = 0; i < n.inputs; i++)
      if (n.levels[i] < quiet[1 + i]) return 0;
    int most = quiet[0] < WHEEL - 1 ? quiet[0] : WHEEL - 1;
    if (n.flying) {
      int far = 0, at = n.head;
      for (; far < most && !n.pipeline[at]; far++) at = at == n.latency - 1 ? 0 : at + 1;
      most = far;
    }
    return most;
  }

  // Whether the node may sleep from the next cycle on.
  bool sleep(int k) {
    Node &n = nodes[k];
    int most = n.is_silent ? quiet_cycles(n) : 0;
    if (most < 2) return false;
    sleepers++;
    n.slept_at = cycle + 1;
    n.wakes_at = cycle + 1 + most;
    wheel[n.wakes_at % WHEEL].push_back(k);
    return true;
  }

  // One clock edge; whether anything in the node changed.
  bool step(Node &n) {
    catch_up(n);
    if (n.slides) n.has_room |= fired(n.out[0]);
    bool is_done = n.has_room && n.is_here, has_moved = false, is_freed = false;
    if (n.row[0]) {
      is_done = fired(n.in[__builtin_ctz(n.row[0])]);
    } else if (!n.depth && n.row[1]) {
      is_done = fired(n.out[__builtin_ctz(n.row[1])]);
    }
    for (int i = 0; i < n.inputs; i++) {
      bool taken = fired(n.in[i]);
      has_moved |= taken;
      int64_t freed = is_done * int64_t(n.row[2 + n.inputs + i]);
      is_freed |= freed != 0;
      if (n.slots[i]) n.levels[i] += taken * n.grain[i] - freed;
    }
    n.is_silent = is_done && !has_moved && !is_freed && n.depth;
    if (n.depth) has_moved |= advance(n, is_done ? uint32_t(n.row[1]) : 0);
    if (is_done) {
      n.at = n.at == n.steps - 1 ? n.first : n.at + 1;
      n.row = n.table + int64_t(n.at) * n.stride;
    }
    return has_moved || is_done;
  }

  // Pipeline and output queues.
  bool advance(Node &n, uint32_t entering) {
    bool has_moved = n.has_room && n.flying;
    uint32_t leaving = 0;
    if (n.has_room) {
      leaving = entering;
      if (n.latency) {
        leaving = n.pipeline[n.head];
        n.pipeline[n.head] = entering;
        n.head = n.head == n.latency - 1 ? 0 : n.head + 1;
        n.flying += (entering != 0) - (leaving != 0);
      }
    }
    for (int j = 0; j < n.outputs; j++) {
      bool given = fired(n.out[j]);
      has_moved |= given;
      n.is_silent &= !given && !(leaving >> j & 1);
      n.counts[j] += int(leaving >> j & 1) - int(given);
      if (n.counts[j] > n.high_water) n.high_water = n.counts[j];
    }
    return has_moved;
  }

  void wake(int node) {
    awake_at[node] = cycle + 1;
    next.push_back(node);
  }

  void move(int node) {
    if (node >= 0 && moving_at[node] != cycle) {
      moving_at[node] = cycle;
      moving.push_back(node);
    }
  }

  void ports() {
    for (Port &p : sources) {
      if (!p.offering) p.offering = p.draw.next() && p.count < p.wanted;
      valid[p.edge] = p.offering;
    }
    for (Port &p : sinks) ready[p.edge] = p.draw.next();
    for (Gate &g : gates) g.passes = g.draw.next();
  }

  void claims() {
    for (std::size_t k = 0; k < awake.size(); k++) offer(nodes[awake[k]]);  // the list may grow
    for (Gate &g : gates) valid[g.behind] = valid[g.before] && (g.passes || g.held);
    for (int k : awake) take(nodes[k]);
    for (auto g = gates.rbegin(); g != gates.rend(); ++g)
      ready[g->before] = ready[g->behind] && (g->passes || g->held);
  }

  // The nodes that may move: those awake, and whoever is at the other end of a beat.
  void gather() {
    moving.clear();
    for (int k : awake) move(k);
    if (is_stalled) return;
    for (int k : awake) {
      const Node &n = nodes[k];
      for (int i = 0; i < n.inputs; i++)
        if (fired(n.in[i])) move(producer[n.in[i]]);
      for (int j = 0; j < n.outputs; j++)
        if (fired(n.out[j])) move(consumer[n.out[j]]);
    }
  }

  bool record() {
    bool any = false;
    for (Port &p : sources) {
      if (!fired(p.edge)) continue;
      any = true;
      if (p.count < p.wanted) p.times[p.count] = uint32_t(cycle);
      p.count++;
      p.offering = false;
    }
    for (Port &p : sinks) {
      if (!fired(p.edge)) continue;
      any = true;
      if (p.count < p.wanted) p.times[p.count] = uint32_t(cycle);
      p.count++;
    }
    for (std::size_t m = 0; m < moving.size() && !any; m++) {
      const Node &n = nodes[moving[m]];
      for (int i = 0; i < n.inputs; i++) any |= fired(n.in[i]);
      for (int j = 0; j < n.outputs; j++) any |= fired(n.out[j]);
    }
    return any;
  }

  void wake_sleepers() {
    std::vector<int> &due = wheel[cycle % WHEEL];
    for (int k : due) {
      Node &n = nodes[k];
      if (n.slept_at < 0 || n.wakes_at != cycle || awake_at[k] == cycle) continue;
      catch_up(n);
      awake_at[k] = cycle;
      awake.push_back(k);
    }
    due.clear();
  }

  // One cycle; false where nothing will ever move again.
  bool run_cycle() {
    if (!is_stalled) wake_sleepers();
    ports();
    claims();
    gather();
    bool any = record();
    next.clear();
    for (int k : moving) {
      if (step(nodes[k]) && !is_stalled && !sleep(k)) wake(k);
    }
    for (Gate &g : gates) g.held = valid[g.behind] && !ready[g.behind];
    if (any) last_beat = cycle;
    cycle++;
    if (is_stalled) return true;
    awake.swap(next);
    return any || sleepers || !awake.empty();
  }

  bool is_done() const {
    for (const Port &p : sinks)
      if (p.count < p.wanted) return false;
    return true;
  }
};

Draw draw(uint32_t seed, uint32_t prime, int64_t number, int64_t threshold, int64_t burst) {
  return Draw{seed + prime * uint32_t(number + 1), uint32_t(threshold), burst, 0, false};
}

}  // namespace

extern "C" {

// `head`: nodes, edges, gates, sources, sinks, seed, burst, three thresholds, patience, limit (-1:
// none). `layout`: of each node inputs, outputs, latency, depth, steps, the first step of a round,
// whether it slides, then its input and output edges, slots and grains; of each gate its number and edges; of each port its edge and beats.
// `told`: is it done, last cycle with a beat, then a high-water mark of each node, the beats of each
// port, for each edge whether it is blocked, and of each node the state: its step, the level of each
// input buffer, the level of each output queue.
__attribute__((visibility("default")))
void mase_cycles(const int64_t *head, const int64_t *layout, const int32_t *const *tables,
                 const int32_t *const *quiet, uint32_t *const *times, int64_t *told) {
  Network net;
  const int64_t edges = head[1], seed = head[5], burst = head[6], patience = head[10];
  const int64_t limit = head[11], full = 1 << 24;
  net.nodes.resize(head[0]);
  net.valid.assign(edges, 0);
  net.ready.assign(edges, 0);
  net.producer.assign(edges, -1);
  net.consumer.assign(edges, -1);
  net.wheel.resize(WHEEL);
  net.awake_at.assign(head[0], 0);
  net.moving_at.assign(head[0], -1);
  for (int k = 0; k < head[0]; k++) {
    Node &n = net.nodes[k];
    n.inputs = int(layout[0]), n.outputs = int(layout[1]), n.latency = int(layout[2]);
    n.depth = int(layout[3]), n.steps = int(layout[4]), n.first = int(layout[5]);
    n.slides = int(layout[6]);
    n.in = layout + HEAD, n.out = n.in + n.inputs;
    n.slots = n.out + n.outputs, n.grain = n.slots + n.inputs;
    layout = n.grain + n.inputs;
    n.stride = 2 + 2 * n.inputs;
    n.table = n.row = tables[k];
    n.quiet = quiet[k];
    n.levels.assign(n.inputs, 0);
    n.counts.assign(n.outputs, 0);
    n.pipeline.assign(n.latency, 0);
    for (int i = 0; i < n.inputs; i++) net.consumer[n.in[i]] = k;
    for (int j = 0; j < n.outputs; j++) net.producer[n.out[j]] = k;
    net.awake.push_back(k);
  }
  for (int k = 0; k < head[2]; k++, layout += 3)
    net.gates.push_back(
        Gate{layout[1], layout[2], draw(seed, 1299709, layout[0], head[9], burst), false, false});
  for (int k = 0; k < head[3] + head[4]; k++, layout += 2) {
    bool is_source = k < head[3];
    int64_t number = is_source ? k : k - head[3];
    Draw chance = draw(seed, is_source ? 7919 : 104729, number, head[is_source ? 7 : 8], burst);
    (is_source ? net.sources : net.sinks).push_back(
        Port{layout[0], layout[1], 0, times[k], chance, false});
  }
  net.is_stalled = head[2] || head[7] < full || head[8] < full;
  bool is_stuck = false;
  while (!net.is_done() && (limit < 0 || net.cycle < limit)) {
    if (!net.run_cycle()) {  // the reference would wait until its patience or the limit ends
      is_stuck = limit < 0 || net.last_beat + patience + 2 <= limit;
      break;
    }
    if (net.cycle - 1 - net.last_beat > patience) {
      is_stuck = true;
      break;
    }
  }
  *told++ = net.is_done() || !is_stuck;
  *told++ = net.last_beat;
  for (const Node &n : net.nodes) *told++ = n.high_water;
  for (const Port &p : net.sources) *told++ = p.count;
  for (const Port &p : net.sinks) *told++ = p.count;
  for (int64_t e = 0; e < edges; e++) *told++ = net.valid[e] && !net.ready[e];
  for (Node &n : net.nodes) {
    net.catch_up(n);
    *told++ = n.at;
    for (int64_t level : n.levels) *told++ = level;
    for (int64_t count : n.counts) *told++ = count;
  }
}

}

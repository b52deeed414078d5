// What a stream owes: `push` says that PUSH words are due, `expected`; beats of POP words leave.
// A bit of `broken` is high in a cycle in which a law does not hold:
//   0 order: a beat is exactly the words due first; none is lost, repeated or changed, and at most
//     SLOTS are due at once
//   1 stable: once valid, a beat stays as it is until it is taken
//   2 progress: what is due is offered within LATENCY cycles, whether the sink is ready or not; and
//     while sources offer, at most GAP cycles in which the sink is ready give no beat
// The laws hold from the first reset on, as long as the sources are lawful.
`default_nettype none

module stream_laws #(
    parameter int WIDTH   = 2,
    parameter int PUSH    = 1,
    parameter int POP     = 1,
    parameter int SLOTS   = 4,
    parameter int LATENCY = 0,
    parameter int GAP     = 1,
    parameter int BEAT    = POP * WIDTH
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic is_lawful,  // the sources have been, up to this cycle
    input  wire logic is_fed,  // every source offers a beat
    input  wire logic is_moving,  // 0: a pipeline that is held in this cycle owes nothing for it
    input  wire logic push,
    input  wire logic [PUSH*WIDTH-1:0] expected,
    output      logic [POP*WIDTH-1:0] head,  // the words due first
    input  wire logic [BEAT-1:0] due,  // the beat that they make: themselves, where they are not operands
    input  wire logic ends,  // with this beat they are done with
    input  wire logic [BEAT-1:0] data,
    input  wire logic valid,
    input  wire logic ready,
    output      logic [2:0] broken
);

  localparam int COUNT = $clog2(SLOTS + PUSH + POP + 1);
  localparam int WAIT = $clog2(LATENCY + 2);
  localparam int IDLE = $clog2(GAP + 2);

  logic is_reset_q = 1'b0;
  logic was_stalled_q, pop, is_live, is_due;
  logic [BEAT-1:0] was_q;
  logic [SLOTS*WIDTH-1:0] words_q, words_left, words_next;
  logic [COUNT-1:0] due_q, due_left, due_next;
  logic [WAIT-1:0] wait_q;
  logic [IDLE-1:0] idle_q;

  assign head       = words_q[POP*WIDTH-1:0];
  assign pop        = valid && ready && ends;
  assign is_due     = 32'(due_q) >= POP;
  assign words_left = pop ? words_q >> (POP * WIDTH) : words_q;
  assign due_left   = pop ? due_q - COUNT'(POP) : due_q;
  assign due_next   = push ? due_left + COUNT'(PUSH) : due_left;

  for (genvar slot = 0; slot < SLOTS; slot++) begin : g_slot
    always_comb begin
      words_next[slot*WIDTH+:WIDTH] = words_left[slot*WIDTH+:WIDTH];
      for (int k = 0; k < PUSH; k++) begin
        if (push && 32'(due_left) + k == slot) begin
          words_next[slot*WIDTH+:WIDTH] = expected[k*WIDTH+:WIDTH];
        end
      end
    end
  end

  always_ff @(posedge clk) begin
    is_reset_q    <= is_reset_q || rst;
    was_stalled_q <= valid && !ready && !rst;
    was_q         <= data;
    words_q       <= words_next;
    due_q         <= rst ? '0 : due_next;
    wait_q        <= rst || valid || !is_due ? '0 : wait_q + WAIT'(is_moving);
    idle_q        <= rst || valid && ready ? '0 : idle_q + IDLE'(ready && is_fed);
  end

  assign is_live = is_reset_q && !rst && is_lawful;
  assign broken[0] = is_live
      && (valid && !(is_due && data == due) || 32'(due_next) > SLOTS);
  assign broken[1] = is_live && was_stalled_q && !(valid && data == was_q);
  assign broken[2] = is_live && (32'(wait_q) > LATENCY || 32'(idle_q) > GAP);

endmodule

`default_nettype wire

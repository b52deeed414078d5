// First-in first-out queue of DEPTH beats.
// Latency 1 cycle, throughput 1 beat per cycle (DEPTH 1: one beat every two cycles).
//
// From 1024 bits on, the slots are block RAM: the next slot is read ahead, and a beat that is
// written there in the same cycle goes round it. The oldest beat then is a register, not a slot, as
// block RAM gives its word late in a cycle; a beat that finds no other goes there at once.
`default_nettype none

module fifo #(
    parameter int DATA_WIDTH = 8,  // bits of one beat, 1 or more
    parameter int DEPTH      = 4,  // beats held, 1 or more
    parameter bit HAS_HEAD   = 1'b0  // 1: the oldest beat is a register in any case
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || DEPTH < 1) begin : g_refuse_size
    $error("fifo: width and DEPTH must be 1 or more, got %0d and %0d", DATA_WIDTH, DEPTH);
  end
`endif

  localparam bit IS_BLOCK = DEPTH > 32 && DEPTH * DATA_WIDTH >= 1024;
  localparam bit IS_HEADED = DEPTH > 1 && (IS_BLOCK || HAS_HEAD);
  localparam int SLOTS = IS_HEADED ? DEPTH - 1 : DEPTH;
  localparam int POINTER_WIDTH = SLOTS > 1 ? $clog2(SLOTS) : 1;
  localparam int COUNT_WIDTH = $clog2(DEPTH + 1);
  localparam logic [POINTER_WIDTH-1:0] LAST_SLOT = POINTER_WIDTH'(SLOTS - 1);

  logic [POINTER_WIDTH-1:0] write_q, read_q, read_next;
  logic [COUNT_WIDTH-1:0] count_q;
  logic [DATA_WIDTH-1:0] slot;
  logic push, pop, store, fetch;

  assign data_in_0_ready  = count_q != COUNT_WIDTH'(DEPTH);
  assign data_out_0_valid = count_q != '0;
  assign push             = data_in_0_valid && data_in_0_ready;
  assign pop              = data_out_0_valid && data_out_0_ready;
  assign read_next        = read_q == LAST_SLOT ? '0 : read_q + 1'b1;

  if (IS_HEADED) begin : g_head
    logic [DATA_WIDTH-1:0] head_q;
    logic has_more, is_alone;

    assign has_more   = count_q > COUNT_WIDTH'(1);
    assign is_alone   = count_q == '0 || (pop && !has_more);
    assign store      = push && !is_alone;
    assign fetch      = pop && has_more;
    assign data_out_0 = head_q;

    always_ff @(posedge clk) if (pop || count_q == '0) head_q <= has_more ? slot : data_in_0;
  end else begin : g_no_head
    assign store      = push;
    assign fetch      = pop;
    assign data_out_0 = slot;
  end

  if (IS_BLOCK) begin : g_block
    // a beat that is read as it is written goes round
    (* no_rw_check, ram_style = "block" *)
    logic [DATA_WIDTH-1:0] slots[SLOTS];
    logic [DATA_WIDTH-1:0] slot_q, round_q;
    logic [POINTER_WIDTH-1:0] ahead;
    logic is_round_q;

    assign ahead = fetch ? read_next : read_q;
    assign slot  = is_round_q ? round_q : slot_q;

    always_ff @(posedge clk) begin
      if (store) slots[write_q] <= data_in_0;
      slot_q     <= slots[ahead];
      round_q    <= data_in_0;
      is_round_q <= store && write_q == ahead;
    end
  end else if (SLOTS == 1) begin : g_register
    logic [DATA_WIDTH-1:0] slot_q;

    assign slot = slot_q;

    always_ff @(posedge clk) if (store) slot_q <= data_in_0;
  end else begin : g_registers
    (* ram_style = "distributed" *)  // block RAM would need a way round it
    logic [DATA_WIDTH-1:0] slots_q[SLOTS];

    assign slot = slots_q[read_q];

    always_ff @(posedge clk) if (store) slots_q[write_q] <= data_in_0;
  end

  always_ff @(posedge clk) begin
    if (store) write_q <= write_q == LAST_SLOT ? '0 : write_q + 1'b1;
    if (fetch) read_q <= read_next;
    if (push && !pop) count_q <= count_q + 1'b1;
    if (pop && !push) count_q <= count_q - 1'b1;
    if (rst) begin
      write_q <= '0;
      read_q  <= '0;
      count_q <= '0;
    end
  end

endmodule

`default_nettype wire

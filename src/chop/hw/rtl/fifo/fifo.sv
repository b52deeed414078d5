// First-in first-out queue of DEPTH beats.
// Latency 1 cycle, throughput 1 beat per cycle (DEPTH 1: one beat every two cycles).
//
// From 4096 bits on, the slots are block RAM: the next slot is read ahead, and a beat that is
// written there in the same cycle goes round it.
`default_nettype none

module fifo #(
    parameter int DATA_WIDTH = 8,  // bits of one beat, 1 or more
    parameter int DEPTH      = 4   // beats held, 1 or more
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

  localparam int POINTER_WIDTH = DEPTH > 1 ? $clog2(DEPTH) : 1;
  localparam int COUNT_WIDTH = $clog2(DEPTH + 1);
  localparam logic [POINTER_WIDTH-1:0] LAST_SLOT = POINTER_WIDTH'(DEPTH - 1);

  localparam bit IS_BLOCK = DEPTH > 32 && DEPTH * DATA_WIDTH >= 4096;

  logic [POINTER_WIDTH-1:0] write_q, read_q, read_next;
  logic [COUNT_WIDTH-1:0] count_q;
  logic push, pop;

  assign data_in_0_ready  = count_q != COUNT_WIDTH'(DEPTH);
  assign data_out_0_valid = count_q != '0;
  assign push             = data_in_0_valid && data_in_0_ready;
  assign pop              = data_out_0_valid && data_out_0_ready;
  assign read_next        = read_q == LAST_SLOT ? '0 : read_q + 1'b1;

  if (IS_BLOCK) begin : g_block
    logic [DATA_WIDTH-1:0] slots[DEPTH];
    logic [DATA_WIDTH-1:0] slot_q, round_q;
    logic [POINTER_WIDTH-1:0] ahead;
    logic is_round_q;

    assign ahead      = pop ? read_next : read_q;
    assign data_out_0 = is_round_q ? round_q : slot_q;

    always_ff @(posedge clk) begin
      if (push) slots[write_q] <= data_in_0;
      slot_q     <= slots[ahead];
      round_q    <= data_in_0;
      is_round_q <= push && write_q == ahead;
    end
  end else begin : g_registers
    logic [DATA_WIDTH-1:0] slots_q[DEPTH];

    assign data_out_0 = slots_q[read_q];

    always_ff @(posedge clk) if (push) slots_q[write_q] <= data_in_0;
  end

  always_ff @(posedge clk) begin
    if (push) write_q <= write_q == LAST_SLOT ? '0 : write_q + 1'b1;
    if (pop) read_q <= read_next;
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

// Holds the beats of a row until its last, which comes with a number about the whole row (its
// largest element, its sum), then gives them beside that number. Both outputs are registers, the
// first stage of a pipeline that moves with `enable`. Throughput 1 beat per cycle: the next row
// comes while one goes. Latency: a row and 1 cycle.
`default_nettype none

module row_buffer #(
    parameter int DATA_WIDTH   = 8,  // bits of one beat, 1 or more
    parameter int SCALAR_WIDTH = 8,  // bits of the number of a row, 1 or more
    parameter int BEATS        = 4   // beats of a row, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic [SCALAR_WIDTH-1:0] scalar_in,  // looked at with the last beat of a row
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic enable,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic [SCALAR_WIDTH-1:0] scalar_out,
    output      logic data_out_0_valid
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || SCALAR_WIDTH < 1 || BEATS < 1) begin : g_refuse_size
    $error("row_buffer: widths and BEATS must be 1 or more, got %0d, %0d and %0d",
           DATA_WIDTH, SCALAR_WIDTH, BEATS);
  end
`endif

  // One slot more than a row, which is taken while the row's first beat leaves.
  localparam int SLOTS = BEATS + 1;
  localparam int SLOT_WIDTH = $clog2(SLOTS);
  localparam int LEVEL_WIDTH = $clog2(SLOTS + 1);
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;

  (* no_rw_check *)  // what is read has been written before, and its slot is not free
  logic [DATA_WIDTH-1:0] beats_q[SLOTS];
  logic [SCALAR_WIDTH-1:0] scalars_q[2];
  logic [SLOT_WIDTH-1:0] write_q, read_q;
  logic [LEVEL_WIDTH-1:0] level_q;
  logic [BEAT_WIDTH-1:0] beat_in_q, beat_out_q;
  logic scalar_write_q, scalar_read_q;
  logic [1:0] rows_q;
  logic load, issue, ends, leaves;

  assign data_in_0_ready = level_q != LEVEL_WIDTH'(SLOTS);
  assign load            = data_in_0_valid && data_in_0_ready;
  assign issue           = enable && rows_q != '0;
  assign ends            = load && beat_in_q == BEAT_WIDTH'(BEATS - 1);
  assign leaves          = issue && beat_out_q == BEAT_WIDTH'(BEATS - 1);

  always_ff @(posedge clk) begin  // memories, without reset
    if (load) beats_q[write_q] <= data_in_0;
    if (load) scalars_q[scalar_write_q] <= scalar_in;
    if (enable) begin
      data_out_0 <= beats_q[read_q];
      scalar_out <= scalars_q[scalar_read_q];
    end
  end

  always_ff @(posedge clk) begin
    if (enable) data_out_0_valid <= issue;
    if (load) begin
      write_q   <= write_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : write_q + 1'b1;
      beat_in_q <= ends ? '0 : beat_in_q + 1'b1;
    end
    if (issue) begin
      read_q     <= read_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : read_q + 1'b1;
      beat_out_q <= leaves ? '0 : beat_out_q + 1'b1;
    end
    if (load && !issue) level_q <= level_q + 1'b1;
    if (issue && !load) level_q <= level_q - 1'b1;
    if (ends) scalar_write_q <= !scalar_write_q;
    if (leaves) scalar_read_q <= !scalar_read_q;
    if (ends && !leaves) rows_q <= rows_q + 1'b1;
    if (leaves && !ends) rows_q <= rows_q - 1'b1;
    if (rst) begin
      data_out_0_valid <= 1'b0;
      write_q          <= '0;
      read_q           <= '0;
      level_q          <= '0;
      beat_in_q        <= '0;
      beat_out_q       <= '0;
      scalar_write_q   <= 1'b0;
      scalar_read_q    <= 1'b0;
      rows_q           <= '0;
    end
  end

endmodule

`default_nettype wire

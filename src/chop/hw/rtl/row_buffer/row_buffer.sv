// Holds the beats of a row until a number about the whole row (its largest element, its sum) is
// known, then gives them beside it. Both outputs are registers, the first stage of a pipeline that
// moves with `enable`. Throughput 1 beat per cycle where SLOTS is BEATS and the cycles between a
// row's last beat and its number.
`default_nettype none

module row_buffer #(
    parameter int DATA_WIDTH   = 8,  // bits of one beat, 1 or more
    parameter int SCALAR_WIDTH = 8,  // bits of the number of a row, 1 or more
    parameter int BEATS        = 4,  // beats of a row, 1 or more
    parameter int SLOTS        = 6   // beats held, BEATS or more
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    // One number for each row, after the row's last beat has been taken; it is always taken.
    input  wire logic [SCALAR_WIDTH-1:0] scalar_in,
    input  wire logic scalar_in_valid,

    input  wire logic enable,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic [SCALAR_WIDTH-1:0] scalar_out,
    output      logic data_out_0_valid
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || SCALAR_WIDTH < 1) begin : g_refuse_width
    $error("row_buffer: widths must be 1 or more, got %0d and %0d", DATA_WIDTH, SCALAR_WIDTH);
  end
  if (BEATS < 1 || SLOTS < BEATS) begin : g_refuse_size
    $error("row_buffer: SLOTS must hold a row, got %0d for %0d beats", SLOTS, BEATS);
  end
`endif

  localparam int SLOT_WIDTH = SLOTS > 1 ? $clog2(SLOTS) : 1;
  localparam int LEVEL_WIDTH = $clog2(SLOTS + 1);
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  // A number waits only while the last beat of its row does.
  localparam int SCALARS = (SLOTS + BEATS - 1) / BEATS;
  localparam int PLACE_WIDTH = SCALARS > 1 ? $clog2(SCALARS) : 1;
  localparam int COUNT_WIDTH = $clog2(SCALARS + 1);

  logic [DATA_WIDTH-1:0] beats_q[SLOTS];
  logic [SCALAR_WIDTH-1:0] scalars_q[SCALARS];
  logic [SLOT_WIDTH-1:0] write_q, read_q;
  logic [LEVEL_WIDTH-1:0] level_q;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [PLACE_WIDTH-1:0] scalar_write_q, scalar_read_q;
  logic [COUNT_WIDTH-1:0] count_q;
  logic load, issue, is_last, leaves;

  assign data_in_0_ready = level_q != LEVEL_WIDTH'(SLOTS);
  assign load            = data_in_0_valid && data_in_0_ready;
  assign issue           = enable && count_q != '0;  // a row with a number has beats
  assign is_last         = beat_q == BEAT_WIDTH'(BEATS - 1);
  assign leaves          = issue && is_last;

  always_ff @(posedge clk) begin  // memories, without reset
    if (load) beats_q[write_q] <= data_in_0;
    if (scalar_in_valid) scalars_q[scalar_write_q] <= scalar_in;
    if (enable) begin
      data_out_0 <= beats_q[read_q];
      scalar_out <= scalars_q[scalar_read_q];
    end
  end

  always_ff @(posedge clk) begin
    if (enable) data_out_0_valid <= issue;
    if (load) write_q <= write_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : write_q + 1'b1;
    if (issue) begin
      read_q <= read_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : read_q + 1'b1;
      beat_q <= is_last ? '0 : beat_q + 1'b1;
    end
    if (load && !issue) level_q <= level_q + 1'b1;
    if (issue && !load) level_q <= level_q - 1'b1;
    if (scalar_in_valid) begin
      scalar_write_q <= scalar_write_q == PLACE_WIDTH'(SCALARS - 1) ? '0 : scalar_write_q + 1'b1;
    end
    if (leaves) begin
      scalar_read_q <= scalar_read_q == PLACE_WIDTH'(SCALARS - 1) ? '0 : scalar_read_q + 1'b1;
    end
    if (scalar_in_valid && !leaves) count_q <= count_q + 1'b1;
    if (leaves && !scalar_in_valid) count_q <= count_q - 1'b1;
    if (rst) begin
      data_out_0_valid <= 1'b0;
      write_q          <= '0;
      read_q           <= '0;
      level_q          <= '0;
      beat_q           <= '0;
      scalar_write_q   <= '0;
      scalar_read_q    <= '0;
      count_q          <= '0;
    end
  end

endmodule

`default_nettype wire

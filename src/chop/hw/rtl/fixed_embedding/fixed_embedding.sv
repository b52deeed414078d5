// Rows of a table by their number: the vector of a token. A number beyond the table reads its last
// row. Latency 3 cycles, throughput 1 beat per cycle; the table is read once a cycle: block RAM.
`default_nettype none

module fixed_embedding #(
    parameter int DATA_IN_0_PRECISION_0        = 4,           // width of a number of a row, bits
    parameter int DATA_OUT_0_PRECISION_0       = 8,           // width of an element, bits
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 4,           // elements of a row
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 2,           // elements per beat; divides the row
    parameter int ROWS                         = 10,          // of the table, up to 2**width
    parameter     INIT_FILE                    = "table.mem"  // a hexadecimal word for each beat
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_OUT_0_PRECISION_0 < 1 || DATA_OUT_0_PARALLELISM_DIM_0 < 1 ||
      DATA_OUT_0_TENSOR_SIZE_DIM_0 % DATA_OUT_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_size
    $error("fixed_embedding: lanes must divide a row of %0d elements, got %0d",
           DATA_OUT_0_TENSOR_SIZE_DIM_0, DATA_OUT_0_PARALLELISM_DIM_0);
  end
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PRECISION_0 > 24 || ROWS < 1 ||
      ROWS > 2 ** DATA_IN_0_PRECISION_0) begin : g_refuse_rows
    $error("fixed_embedding: numbers of 1 to 24 bits, and a row for each at most, got %0d and %0d",
           DATA_IN_0_PRECISION_0, ROWS);
  end
`endif

  localparam int BEATS = DATA_OUT_0_TENSOR_SIZE_DIM_0 / DATA_OUT_0_PARALLELISM_DIM_0;
  localparam int WIDTH = DATA_OUT_0_PARALLELISM_DIM_0 * DATA_OUT_0_PRECISION_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;

  logic [WIDTH-1:0] words[ROWS*BEATS];
  logic [WIDTH-1:0] read_q;
  logic [IN_WIDTH-1:0] number;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [31:0] row;
  logic number_valid, is_last, enable, read_valid_q;

  initial $readmemh(INIT_FILE, words);

  skid_buffer #(
      .DATA_WIDTH(IN_WIDTH)
  ) u_ahead (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (number),
      .data_out_0_valid(number_valid),
      .data_out_0_ready(enable && is_last)
  );

  assign is_last = beat_q == BEAT_WIDTH'(BEATS - 1);
  assign row     = 32'(number) < ROWS ? 32'(number) : ROWS - 1;

  always_ff @(posedge clk) begin
    if (enable) begin
      read_q       <= words[row*BEATS+32'(beat_q)];
      read_valid_q <= number_valid;
      if (number_valid) beat_q <= is_last ? '0 : beat_q + 1'b1;
    end
    if (rst) begin
      read_valid_q <= 1'b0;
      beat_q       <= '0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (read_q),
      .data_in_0_valid (read_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire

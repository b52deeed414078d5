// Rows of a table by their numbers: one number in, one row of OUT_BEATS beats out.
// Latency 3 cycles, throughput 1 beat per cycle; the table is one memory with a registered read.
// A number past the last row gives the last row.
`default_nettype none

module fixed_embedding #(
    parameter int DATA_IN_0_PRECISION_0        = 3,  // bits of a number, 1 or more
    parameter int ROWS                         = 8,  // of the table, 1 to 2**bits
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // bits of an element, 1 or more
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 4,  // elements of a row
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 2,  // elements per beat; divides the row
    parameter     INIT_FILE                    = "table.mem"  // words: beats of the rows in order
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
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1 || ROWS < 1
      || ROWS > 2 ** DATA_IN_0_PRECISION_0) begin : g_refuse_size
    $error("fixed_embedding: %0d rows of %0d bits by numbers of %0d bits: there are no such",
           ROWS, DATA_OUT_0_PRECISION_0, DATA_IN_0_PRECISION_0);
  end
  if (DATA_OUT_0_PARALLELISM_DIM_0 < 1
      || DATA_OUT_0_TENSOR_SIZE_DIM_0 % DATA_OUT_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_lanes
    $error("fixed_embedding: the parallelism must divide the row, got %0d of %0d",
           DATA_OUT_0_PARALLELISM_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int WORD = DATA_OUT_0_PARALLELISM_DIM_0 * DATA_OUT_0_PRECISION_0;
  localparam int BEATS = DATA_OUT_0_TENSOR_SIZE_DIM_0 / DATA_OUT_0_PARALLELISM_DIM_0;
  localparam int WORDS = ROWS * BEATS;
  localparam int ADDRESS_WIDTH = WORDS > 1 ? $clog2(WORDS) : 1;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;

  logic [WORD-1:0] words[WORDS];
  logic [WORD-1:0] read_q;
  logic [WIDTH-1:0] number, row;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [ADDRESS_WIDTH-1:0] address;
  logic number_valid, number_ready, is_last, enable, read_valid_q;

  initial $readmemh(INIT_FILE, words);

  skid_buffer #(
      .DATA_WIDTH(WIDTH)
  ) u_number (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (number),
      .data_out_0_valid(number_valid),
      .data_out_0_ready(number_ready)
  );

  if (ROWS < 2 ** WIDTH) begin : g_bounded
    assign row = number < WIDTH'(ROWS) ? number : WIDTH'(ROWS - 1);
  end else begin : g_all
    assign row = number;
  end

  assign is_last      = beat_q == BEAT_WIDTH'(BEATS - 1);
  assign number_ready = enable && is_last;
  assign address      = ADDRESS_WIDTH'(32'(row) * BEATS + 32'(beat_q));

  always_ff @(posedge clk) begin
    if (enable) begin
      read_q       <= words[address];
      read_valid_q <= number_valid;
      if (number_valid) beat_q <= is_last ? '0 : beat_q + 1'b1;
    end
    if (rst) begin
      read_valid_q <= 1'b0;
      beat_q       <= '0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(WORD)
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

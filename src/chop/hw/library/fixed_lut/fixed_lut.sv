// Any function of one element, by table: entry = code of x read as an unsigned number.
// Latency 2 cycles, throughput 1 beat per cycle; one read port of the table per lane.
`default_nettype none

module fixed_lut #(
    parameter int DATA_IN_0_PRECISION_0       = 8,         // width of an input, 1 to 16 bits
    parameter int DATA_OUT_0_PRECISION_0      = 8,         // width of an output element, bits
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1,         // elements per beat, 1 or more
    parameter     INIT_FILE                   = "lut.mem"  // 2**width hexadecimal words
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_OUT_0_PRECISION_0 < 1 || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_lut: output width and lanes must be 1 or more, got %0d and %0d",
           DATA_OUT_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PRECISION_0 > 16) begin : g_refuse_table
    $error("fixed_lut: an input must have 1 to 16 bits, got %0d", DATA_IN_0_PRECISION_0);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;

  logic [OUT_WIDTH-1:0] entries[2**IN_WIDTH];
  logic [LANES*OUT_WIDTH-1:0] read_q;
  logic read_valid_q;

  initial $readmemh(INIT_FILE, entries);

  always_ff @(posedge clk) begin
    if (data_in_0_ready) begin
      for (int lane = 0; lane < LANES; lane++) begin
        read_q[lane*OUT_WIDTH+:OUT_WIDTH] <= entries[data_in_0[lane*IN_WIDTH+:IN_WIDTH]];
      end
      read_valid_q <= data_in_0_valid;
    end
    if (rst) read_valid_q <= 1'b0;
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * OUT_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (read_q),
      .data_in_0_valid (read_valid_q),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire

// Hard shrink: x where |x| >= THRESHOLD, 0 elsewhere. The format stays.
// Latency 1 cycle, throughput 1 beat per cycle.
`default_nettype none

module fixed_shrink #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an element, bits, 2 or more
    parameter int THRESHOLD                   = 8,  // in steps of the format, 0 or more
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int WIDE = WIDTH + 1;  // -THRESHOLD and the lowest value fit
  localparam logic signed [WIDE-1:0] LIMIT = WIDE'(THRESHOLD);

  logic [LANES*WIDTH-1:0] result;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [WIDE-1:0] x;
    assign x = WIDE'($signed(data_in_0[lane*WIDTH+:WIDTH]));
    assign result[lane*WIDTH+:WIDTH] =
        (x >= LIMIT || x <= -LIMIT) ? data_in_0[lane*WIDTH+:WIDTH] : '0;
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire

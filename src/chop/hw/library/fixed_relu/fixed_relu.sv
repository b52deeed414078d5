// Rectifier: max(x, 0) on every lane.
// Combinational pass-through: latency 0, throughput 1 beat per cycle.
`default_nettype none

module fixed_relu #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an element, bits, 1 or more
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
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

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_relu: width and lanes must be 1 or more, got %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;

  assign data_out_0_valid = data_in_0_valid;
  assign data_in_0_ready  = data_out_0_ready;

  for (genvar lane = 0; lane < DATA_IN_0_PARALLELISM_DIM_0; lane++) begin : g_lane
    logic is_negative;
    assign is_negative = DATA_IN_0_IS_SIGNED && data_in_0[lane*WIDTH+WIDTH-1];
    assign data_out_0[lane*WIDTH+:WIDTH] = is_negative ? '0 : data_in_0[lane*WIDTH+:WIDTH];
  end

  wire logic unused_ok = &{1'b0, clk, rst};

endmodule

`default_nettype wire

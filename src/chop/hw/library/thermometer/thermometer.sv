// Thermometer code: a bit for each input and threshold, 1 if the input reaches the threshold.
// Combinational pass-through: latency 0, throughput 1 beat per cycle.
//
// Thresholds are built in. A comparison with a constant is a chain of ANDs and ORs over the bits
// of the input: it starts behind the zeros at the end of the constant.
`default_nettype none

module thermometer #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input, bits, 1 to 62
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0 = 1,  // inputs of a vector, one beat
    parameter int LEVELS                      = 1,  // thresholds of an input, 1 or more
    // Thresholds by input and level, 64 bits each, counted from the lowest code of an input. A
    // threshold of 2**width is never reached.
    parameter logic [DATA_IN_0_TENSOR_SIZE_DIM_0*LEVELS*64-1:0] THRESHOLDS = '0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_TENSOR_SIZE_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_TENSOR_SIZE_DIM_0*LEVELS-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PRECISION_0 > 62 || DATA_IN_0_TENSOR_SIZE_DIM_0 < 1
      || LEVELS < 1) begin : g_refuse_size
    $error("thermometer: inputs have 1 to 62 bits and 1 or more levels, got %0d inputs of %0d and %0d",
           DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_IN_0_PRECISION_0, LEVELS);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;

  assign data_out_0_valid = data_in_0_valid;
  assign data_in_0_ready  = data_out_0_ready;

  for (genvar place = 0; place < DATA_IN_0_TENSOR_SIZE_DIM_0 * LEVELS; place++) begin : g_level
    localparam logic [WIDTH:0] THRESHOLD = THRESHOLDS[place*64+:WIDTH+1];
    logic [WIDTH-1:0] x;  // counted from the lowest code
    logic [WIDTH:0] reaches;  // bit k: the low k bits reach those of the threshold
    assign x = data_in_0[(place/LEVELS)*WIDTH+:WIDTH] ^ (WIDTH'(DATA_IN_0_IS_SIGNED) << (WIDTH - 1));
    assign reaches[0] = 1'b1;
    for (genvar k = 0; k < WIDTH; k++) begin : g_bit
      assign reaches[k+1] = THRESHOLD[k] ? x[k] && reaches[k] : x[k] || reaches[k];
    end
    assign data_out_0[place] = reaches[WIDTH] && !THRESHOLD[WIDTH];
  end

  wire logic unused_ok = &{1'b0, clk, rst};

endmodule

`default_nettype wire

// The laws of a stream, for tensors whose elements pass `stream_reorder`: output element i is input
// element ORDER[i].
`default_nettype none

module prove_stream_reorder #(
    parameter int WIDTH = 1,
    parameter int LANES = 2,
    parameter int IN = 4,
    parameter int OUT = 4,
    parameter bit MOVES_BEATS = 1'b0,
    parameter logic [OUT*4-1:0] ORDER = '0,  // four bits each
    parameter int LATENCY = 2
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [LANES*WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [LANES*WIDTH-1:0] data_out_0;

  stream_reorder #(
      .DATA_IN_0_PRECISION_0       (WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (IN),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(OUT),
      .DATA_IN_0_PARALLELISM_DIM_0 (LANES),
      .MOVES_BEATS                 (MOVES_BEATS)
  ) dut (
      .*
  );

  logic [IN*WIDTH-1:0] tensor;
  logic [OUT*WIDTH-1:0] moved;
  logic [7:0] place;

  for (genvar k = 0; k < OUT; k++) begin : g_moved
    assign moved[k*WIDTH+:WIDTH] = tensor[ORDER[k*4+:4]*WIDTH+:WIDTH];
  end

  // The beats of the tensor that loads, and of two that wait, may be gone by before one is given.
  tensor_laws #(
      .WIDTH(LANES * WIDTH), .IN_BEATS(IN / LANES), .OUT_BEATS(OUT / LANES), .SLOTS(4),
      .LATENCY(LATENCY), .GAP(IN / LANES + LATENCY + 1)
  ) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .taken    (data_in_0_valid && data_in_0_ready),
      .beat     (data_in_0),
      .tensor   (tensor),
      .place    (place),
      .due      (moved[place*LANES*WIDTH+:LANES*WIDTH]),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire

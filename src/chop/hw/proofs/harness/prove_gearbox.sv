// The laws of a stream, for the elements that pass `gearbox`.
`default_nettype none

module prove_gearbox #(
    parameter int WIDTH = 2,
    parameter int IN_LANES = 2,
    parameter int OUT_LANES = 3,
    parameter int UNIT = 1
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN_LANES*WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [OUT_LANES*WIDTH-1:0] data_out_0;

  gearbox #(
      .DATA_IN_0_PRECISION_0       (WIDTH),
      .DATA_IN_0_PARALLELISM_DIM_0 (IN_LANES),
      .DATA_OUT_0_PARALLELISM_DIM_0(OUT_LANES),
      .UNIT                        (UNIT)
  ) dut (
      .*
  );

  logic [$bits(data_out_0)-1:0] head;

  stream_laws #(.WIDTH(WIDTH), .PUSH(IN_LANES), .POP(OUT_LANES), .SLOTS(2 * IN_LANES + OUT_LANES), .GAP((OUT_LANES + IN_LANES - 1) / IN_LANES)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready),
      .expected (data_in_0),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire

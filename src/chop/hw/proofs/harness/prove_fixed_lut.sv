// `fixed_lut`: the entry of each code.
`default_nettype none

module prove_fixed_lut #(
    parameter int IN_WIDTH = 3,
    parameter int OUT_WIDTH = 3,
    parameter logic [2**IN_WIDTH*OUT_WIDTH-1:0] TABLE = '0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [OUT_WIDTH-1:0] data_out_0, expected;
  assign expected = TABLE[data_in_0*OUT_WIDTH+:OUT_WIDTH];

  fixed_lut #(
      .DATA_IN_0_PRECISION_0 (IN_WIDTH),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .INIT_FILE             ("table.mem")
  ) dut (
      .*
  );

  logic [$bits(data_out_0)-1:0] head;

  stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready),
      .expected (expected),
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

// The laws of a stream, for `fifo`.
`default_nettype none

module prove_fifo #(
    parameter int WIDTH = 2,
    parameter int DEPTH = 3,
    parameter bit HAS_HEAD = 1'b0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [WIDTH-1:0] data_out_0;

  fifo #(.DATA_WIDTH(WIDTH), .DEPTH(DEPTH), .HAS_HEAD(HAS_HEAD)) dut (.*);

  logic [$bits(data_out_0)-1:0] head;

  stream_laws #(.WIDTH(WIDTH), .SLOTS(DEPTH)) u_laws (
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

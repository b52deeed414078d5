// The laws of `stream_join`: pairs of beats, input 0 in the low bits.
`default_nettype none

module prove_stream_join #(
    parameter int WIDTH_0 = 2,
    parameter int WIDTH_1 = 3
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [WIDTH_1-1:0] data_in_1,
    input  wire logic data_in_1_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_in_1_ready, data_out_0_valid, lawful_0, lawful_1;
  logic [WIDTH_0+WIDTH_1-1:0] data_out_0;

  stream_join #(.DATA_IN_0_WIDTH(WIDTH_0), .DATA_IN_1_WIDTH(WIDTH_1)) dut (.*);

  lawful_source #(.WIDTH(WIDTH_0)) u_source_0 (
      .clk(clk), .rst(rst), .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready),
      .is_lawful(lawful_0)
  );

  lawful_source #(.WIDTH(WIDTH_1)) u_source_1 (
      .clk(clk), .rst(rst), .data(data_in_1), .valid(data_in_1_valid), .ready(data_in_1_ready),
      .is_lawful(lawful_1)
  );

  pass_laws #(.WIDTH(WIDTH_0 + WIDTH_1), .SOURCES(2)) u_laws (
      .clk         (clk),
      .rst         (rst),
      .is_lawful   (lawful_0 && lawful_1),
      .source_valid({data_in_1_valid, data_in_0_valid}),
      .source_ready({data_in_1_ready, data_in_0_ready}),
      .expected    ({data_in_1, data_in_0}),
      .data        (data_out_0),
      .valid       (data_out_0_valid),
      .ready       (data_out_0_ready),
      .broken      (broken)
  );

endmodule

`default_nettype wire

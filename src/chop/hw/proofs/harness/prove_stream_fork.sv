// The laws of a stream, for each branch of `stream_fork`.
`default_nettype none

module prove_stream_fork #(
    parameter int WIDTH = 2,
    parameter int BRANCHES = 2
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [BRANCHES-1:0] data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready;
  logic [BRANCHES-1:0] data_out_0_valid;
  logic [BRANCHES*WIDTH-1:0] data_out_0;
  logic [3*BRANCHES-1:0] each;

  stream_fork #(.DATA_WIDTH(WIDTH), .BRANCHES(BRANCHES)) dut (.*);

  // A branch waits for the slowest: it is fed in a cycle in which all sinks are ready.
  for (genvar branch = 0; branch < BRANCHES; branch++) begin : g_branch
    logic [$bits(data_out_0[branch*WIDTH+:WIDTH])-1:0] head;

    stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP(2)) u_laws (
        .clk      (clk),
        .rst      (rst),
        .is_lawful(1'b1),
        .is_fed   (data_in_0_valid && &data_out_0_ready),
        .is_moving(1'b1),
        .push     (data_in_0_valid && data_in_0_ready),
        .expected (data_in_0),
        .head     (head),
        .due      (head),
        .ends     (1'b1),
        .data     (data_out_0[branch*WIDTH+:WIDTH]),
        .valid    (data_out_0_valid[branch]),
        .ready    (data_out_0_ready[branch]),
        .broken   (each[branch*3+:3])
    );
  end

  always_comb begin
    broken = '0;
    for (int branch = 0; branch < BRANCHES; branch++) broken |= each[branch*3+:3];
  end

endmodule

`default_nettype wire

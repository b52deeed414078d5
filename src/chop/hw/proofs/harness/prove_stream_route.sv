// The laws of a stream, for both that `stream_route` gives: the first beats of a round go to one,
// those behind them to the other. Each may stall the other: a beat is due in its own stream alone.
`default_nettype none

module prove_stream_route #(
    parameter int WIDTH = 1,
    parameter int FIRST = 2,
    parameter int SECOND = 1
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [1:0] data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, is_second, push;
  logic [1:0] data_out_0_valid;
  logic [2*WIDTH-1:0] data_out_0;
  logic [7:0] place_q;
  logic [5:0] laws;

  stream_route #(.DATA_WIDTH(WIDTH), .FIRST_BEATS(FIRST), .SECOND_BEATS(SECOND)) dut (.*);

  assign push      = data_in_0_valid && data_in_0_ready;
  assign is_second = 32'(place_q) >= FIRST;
  assign broken    = laws[5:3] | laws[2:0];

  always_ff @(posedge clk) begin
    if (push) place_q <= 32'(place_q) == FIRST + SECOND - 1 ? '0 : place_q + 1'b1;
    if (rst) place_q <= '0;
  end

  for (genvar k = 0; k < 2; k++) begin : g_stream
    logic [WIDTH-1:0] head;
    // While both sinks are ready, the rest of a round comes between two beats of a stream.
    stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP((k == 0 ? SECOND : FIRST) + 1)) u_laws (
        .clk      (clk),
        .rst      (rst),
        .is_lawful(1'b1),
        .is_fed   (data_in_0_valid && data_in_0_ready),
        .is_moving(1'b1),
        .push     (push && is_second == (k == 1)),
        .expected (data_in_0),
        .head     (head),
        .due      (head),
        .ends     (1'b1),
        .data     (data_out_0[k*WIDTH+:WIDTH]),
        .valid    (data_out_0_valid[k]),
        .ready    (data_out_0_ready[k]),
        .broken   (laws[k*3+:3])
    );
  end

endmodule

`default_nettype wire

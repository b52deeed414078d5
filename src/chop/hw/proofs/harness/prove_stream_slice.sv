// The laws of a stream, for the beats of a row that `stream_slice` keeps.
`default_nettype none

module prove_stream_slice #(
    parameter int WIDTH = 2,
    parameter int BEATS = 4,
    parameter int FIRST = 1,
    parameter int KEPT = 2
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
  logic [7:0] place_q;

  stream_slice #(.DATA_WIDTH(WIDTH), .BEATS(BEATS), .FIRST(FIRST), .KEPT(KEPT)) dut (.*);

  always_ff @(posedge clk) begin
    if (data_in_0_valid && data_in_0_ready) place_q <= 32'(place_q) == BEATS - 1 ? '0 : place_q + 1'b1;
    if (rst) place_q <= '0;
  end

  logic [$bits(data_out_0)-1:0] head;

  stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP(BEATS - KEPT + 1)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready
          && 32'(place_q) >= FIRST && 32'(place_q) <= FIRST + KEPT - 1),
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

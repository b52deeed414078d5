// The laws of a stream, for blocks of beats that `stream_concat` takes of two streams in turn.
`default_nettype none

module prove_stream_concat #(
    parameter int WIDTH = 1,
    parameter int BEATS_0 = 2,
    parameter int BEATS_1 = 1,
    parameter bit IS_SWAPPED = 1'b0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [WIDTH-1:0] data_in_1,
    input  wire logic data_in_1_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_in_1_ready, data_out_0_valid, is_one_first, is_one;
  logic [WIDTH-1:0] data_out_0, head;
  logic [7:0] place_q;  // of the beat that is taken next, in a block of both
  logic [2:0] laws;
  logic [1:0] taken;
  logic is_reset_q = 1'b0;

  stream_concat #(
      .DATA_WIDTH(WIDTH), .DATA_IN_0_BEATS(BEATS_0), .DATA_IN_1_BEATS(BEATS_1),
      .IS_SWAPPED(IS_SWAPPED)
  ) dut (
      .*
  );

  assign is_one_first = 32'(place_q) < BEATS_1;
  assign is_one       = IS_SWAPPED ? is_one_first : 32'(place_q) >= BEATS_0;
  assign taken        = {data_in_1_valid && data_in_1_ready, data_in_0_valid && data_in_0_ready};

  always_ff @(posedge clk) begin
    is_reset_q <= is_reset_q || rst;
    if (|taken) place_q <= 32'(place_q) == BEATS_0 + BEATS_1 - 1 ? '0 : place_q + 1'b1;
    if (rst) place_q <= '0;
  end

  stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP(1)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (is_one ? data_in_1_valid : data_in_0_valid),
      .is_moving(1'b1),
      .push     (|taken),
      .expected (is_one ? data_in_1 : data_in_0),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (laws)
  );

  // Nothing is taken of a stream that has not its turn.
  assign broken = laws | {2'b0, is_reset_q && !rst && taken[!is_one]};

endmodule

`default_nettype wire

// The laws of a stream of tensors: a tensor is IN_BEATS beats taken; when the last of them is, all of
// OUT_BEATS beats are due that are a function of it. `tensor` is the oldest of which beats are due and
// `place` says which comes next.
`default_nettype none

module tensor_laws #(
    parameter int WIDTH     = 2,  // bits of a beat taken
    parameter int IN_BEATS  = 2,
    parameter int OUT_BEATS = 2,
    parameter int BEAT      = WIDTH,  // bits of a beat given
    parameter int SLOTS     = 3,  // tensors that may be due at once
    parameter int LATENCY   = 1,
    parameter int GAP       = 4
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic is_lawful,
    input  wire logic is_fed,
    input  wire logic is_moving,
    input  wire logic taken,
    input  wire logic [WIDTH-1:0] beat,
    output      logic [IN_BEATS*WIDTH-1:0] tensor,
    output      logic [7:0] place,
    input  wire logic [BEAT-1:0] due,
    input  wire logic [BEAT-1:0] data,
    input  wire logic valid,
    input  wire logic ready,
    output      logic [2:0] broken
);

  logic [IN_BEATS*WIDTH-1:0] tensor_q, whole;
  logic [7:0] taken_q, given_q;
  logic is_last_in, is_last_out;

  assign place       = given_q;
  assign is_last_in  = 32'(taken_q) == IN_BEATS - 1;
  assign is_last_out = 32'(given_q) == OUT_BEATS - 1;

  always_comb begin
    whole = tensor_q;
    whole[taken_q*WIDTH+:WIDTH] = beat;
  end

  always_ff @(posedge clk) begin
    if (taken) begin
      tensor_q <= whole;
      taken_q  <= is_last_in ? '0 : taken_q + 1'b1;
    end
    if (valid && ready) given_q <= is_last_out ? '0 : given_q + 1'b1;
    if (rst) begin
      taken_q <= '0;
      given_q <= '0;
    end
  end

  stream_laws #(.WIDTH(IN_BEATS * WIDTH), .BEAT(BEAT), .SLOTS(SLOTS), .LATENCY(LATENCY), .GAP(GAP)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(is_lawful),
      .is_fed   (is_fed),
      .is_moving(is_moving),
      .push     (taken && is_last_in),
      .expected (whole),
      .head     (tensor),
      .due      (due),
      .ends     (is_last_out),
      .data     (data),
      .valid    (valid),
      .ready    (ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire

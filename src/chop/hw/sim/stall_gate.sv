// For simulation only: lets the beats of a stream pass while `go` is high, and watches the stream.
// While `tapped` is high the stream is cut: its producer feeds the tap, the tap feeds its consumer.
// Combinational. Once a beat has been offered behind the gate it stays offered until it is taken.
`default_nettype none

module stall_gate #(
    parameter int DATA_WIDTH = 8  // bits of one beat, 1 or more
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic                  go,
    input  wire logic                  tapped,
    input  wire logic [DATA_WIDTH-1:0] data,
    input  wire logic                  before_valid,
    output      logic                  before_ready,
    output      logic [DATA_WIDTH-1:0] behind,
    output      logic                  behind_valid,
    input  wire logic                  behind_ready,
    input  wire logic [DATA_WIDTH-1:0] tap_in,
    input  wire logic                  tap_in_valid,
    output      logic                  tap_in_ready,
    output      logic                  tap_out_valid,
    input  wire logic                  tap_out_ready,
    output      logic                  broken   // an offer was withdrawn or changed
);

  logic held_q, waiting_q;
  logic [DATA_WIDTH-1:0] data_q;

  assign behind        = tapped ? tap_in : data;
  assign behind_valid  = tapped ? tap_in_valid : before_valid && (go || held_q);
  assign before_ready  = tapped ? tap_out_ready : behind_ready && (go || held_q);
  assign tap_in_ready  = tapped && behind_ready;
  assign tap_out_valid = tapped && before_valid;
  assign broken        = waiting_q && (!before_valid || data != data_q);

  always_ff @(posedge clk) begin
    held_q    <= behind_valid && !behind_ready;
    waiting_q <= before_valid && !before_ready;
    data_q    <= data;
    if (rst) begin
      held_q    <= 1'b0;
      waiting_q <= 1'b0;
    end
  end

endmodule

`default_nettype wire

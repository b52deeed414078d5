// For simulation only: lets the beats of a stream pass while `go` is high, and watches the stream.
// Combinational. Once a beat has been offered behind the gate it stays offered until it is taken.
`default_nettype none

module stall_gate #(
    parameter int DATA_WIDTH = 8  // bits of one beat, 1 or more
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic                  go,
    input  wire logic [DATA_WIDTH-1:0] data,
    input  wire logic                  before_valid,
    output      logic                  before_ready,
    output      logic                  behind_valid,
    input  wire logic                  behind_ready,
    output      logic                  broken   // an offer was withdrawn or changed
);

  logic held_q, waiting_q;
  logic [DATA_WIDTH-1:0] data_q;

  assign behind_valid = before_valid && (go || held_q);
  assign before_ready = behind_ready && (go || held_q);
  assign broken       = waiting_q && (!before_valid || data != data_q);

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

// MULT18X18D of ECP5 with its ports as vectors, to simulate netlists with. A register whose clock is
// "NONE" is passed through; RST is not used by what this package makes.
`default_nettype none

module ecp5_multiplier #(
    parameter [31:0] REG_INPUTA_CLK = "NONE",  // "NONE", or "CLK0"
    parameter [23:0] REG_INPUTA_CE  = "CE0",
    parameter [31:0] REG_INPUTB_CLK = "NONE",
    parameter [23:0] REG_INPUTB_CE  = "CE0",
    parameter [31:0] REG_OUTPUT_CLK = "NONE",
    parameter [23:0] REG_OUTPUT_CE  = "CE0"
) (
    input  wire logic        CLK,
    input  wire logic [ 3:0] CE,
    input  wire logic [17:0] A,
    input  wire logic [17:0] B,
    input  wire logic        SIGNEDA,
    input  wire logic        SIGNEDB,
    output      logic [35:0] P
);

  // The last letter of "CE0" … "CE3" is the number of the enable.
  localparam logic [1:0] A_CE = REG_INPUTA_CE[1:0];
  localparam logic [1:0] B_CE = REG_INPUTB_CE[1:0];
  localparam logic [1:0] P_CE = REG_OUTPUT_CE[1:0];

  logic [17:0] a_q, b_q, x, y;
  logic [35:0] wide_x, wide_y, product, p_q;

  assign x       = REG_INPUTA_CLK == "NONE" ? A : a_q;
  assign y       = REG_INPUTB_CLK == "NONE" ? B : b_q;
  assign wide_x  = {{18{SIGNEDA && x[17]}}, x};
  assign wide_y  = {{18{SIGNEDB && y[17]}}, y};
  assign product = wide_x * wide_y;
  assign P       = REG_OUTPUT_CLK == "NONE" ? product : p_q;

  always_ff @(posedge CLK) begin
    if (CE[A_CE]) a_q <= A;
    if (CE[B_CE]) b_q <= B;
    if (CE[P_CE]) p_q <= product;
  end

endmodule

`default_nettype wire

// A number x / (DIVISOR * 2**IN_FRAC) in a fixed-point format, from the definition of rounding: of the
// two whole multiples of the output's step around it, the one that the mode says.
`default_nettype none

module spec_cast #(
    parameter int WORK       = 24,  // bits to compute in
    parameter int IN_FRAC    = 3,
    parameter int DIVISOR    = 1,
    parameter int OUT_WIDTH  = 4,
    parameter int OUT_FRAC   = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING   = 0,  // nearest even, down, toward zero, nearest away
    parameter int OVERFLOW   = 0  // saturate, saturate to a symmetric range, wrap
) (
    input  wire logic signed [WORK-1:0] x,
    output logic [OUT_WIDTH-1:0] y
);

  typedef logic signed [WORK-1:0] number_t;
  localparam int UP = OUT_FRAC > IN_FRAC ? OUT_FRAC - IN_FRAC : 0;
  localparam int DOWN = IN_FRAC > OUT_FRAC ? IN_FRAC - OUT_FRAC : 0;
  localparam number_t STEP = number_t'(DIVISOR * 2 ** DOWN);  // of the output
  localparam number_t ONE = number_t'(1);
  localparam number_t HIGH = number_t'(2 ** (OUT_SIGNED ? OUT_WIDTH - 1 : OUT_WIDTH) - 1);
  localparam number_t LOW = !OUT_SIGNED ? '0 : OVERFLOW == 1 ? -HIGH : -HIGH - ONE;

  number_t scaled, below, rest, twice, rounded;
  logic is_above;

  assign scaled = x * number_t'(2 ** UP);
  assign rest   = scaled - below * STEP;  // from 0 to just below STEP
  assign twice  = rest + rest;

  if (DIVISOR == 1) begin : g_shift
    assign below = scaled >>> DOWN;
  end else begin : g_divide
    number_t toward_zero;
    assign toward_zero = scaled / STEP;
    assign below       = toward_zero * STEP > scaled ? toward_zero - ONE : toward_zero;
  end

  always_comb begin
    case (ROUNDING)
      0: is_above = twice > STEP || twice == STEP && below[0];
      1: is_above = 1'b0;
      2: is_above = rest != 0 && scaled < 0;
      default: is_above = twice > STEP || twice == STEP && scaled > 0;
    endcase
    rounded = is_above ? below + ONE : below;
    y = OUT_WIDTH'(rounded);
    if (OVERFLOW != 2 && rounded > HIGH) y = OUT_WIDTH'(HIGH);
    if (OVERFLOW != 2 && rounded < LOW) y = OUT_WIDTH'(LOW);
  end

endmodule

`default_nettype wire

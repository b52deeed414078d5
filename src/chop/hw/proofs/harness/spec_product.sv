// weight * x + bias with constant signed weights, the bias in steps of the product's, exactly and then
// cast.
`default_nettype none

module spec_product #(
    parameter int IN = 2,
    parameter int OUT = 2,
    parameter int X_WIDTH = 2,
    parameter bit X_SIGNED = 1'b1,
    parameter int W_WIDTH = 4,
    parameter logic [OUT*IN*W_WIDTH-1:0] WEIGHT = '0,
    parameter logic [OUT*W_WIDTH-1:0] BIAS = '0,
    parameter int FRAC = 2,  // of a product
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0
) (
    input  wire logic [IN*X_WIDTH-1:0] x,
    output      logic [OUT*OUT_WIDTH-1:0] y
);

  for (genvar row = 0; row < OUT; row++) begin : g_row
    logic signed [23:0] sum, element, w;
    logic [X_WIDTH-1:0] code;
    always_comb begin
      sum = 24'($signed(BIAS[row*W_WIDTH+:W_WIDTH]));
      for (int k = 0; k < IN; k++) begin
        code = x[k*X_WIDTH+:X_WIDTH];
        element = X_SIGNED ? 24'($signed(code)) : $signed(24'(code));
        w = 24'($signed(WEIGHT[(row*IN+k)*W_WIDTH+:W_WIDTH]));
        sum = sum + element * w;
      end
    end
    spec_cast #(
        .IN_FRAC(FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC), .OUT_SIGNED(OUT_SIGNED),
        .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
    ) u_spec (
        .x(sum),
        .y(y[row*OUT_WIDTH+:OUT_WIDTH])
    );
  end

endmodule

`default_nettype wire

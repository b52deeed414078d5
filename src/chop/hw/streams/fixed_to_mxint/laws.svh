// Each block has the exponent of its largest element; elements are rounded to mantissas by it.
localparam int BEATS = BLOCK_SIZE / IN_LANES;
localparam int CHOICES = HIGHEST - LOWEST + 1;
localparam int EXPONENT = DATA_OUT_0_EXPONENT_WIDTH;
logic [BLOCK_SIZE*IN_WIDTH-1:0] tensor;
logic [$bits(data_out_0)-1:0] due;
logic signed [23:0] x, largest;
logic [EXPONENT-1:0] exponent;
logic [IN_WIDTH-1:0] code;

always_comb begin
  largest = '0;
  for (int k = 0; k < BLOCK_SIZE; k++) begin
    code = tensor[k*IN_WIDTH+:IN_WIDTH];
    x = 24'($signed(code));
    if (x < 0) x = -x;
    if (x > largest) largest = x;
  end
  exponent = '0;  // one more for each power of two above the lowest that is reached
  for (int k = 1; k < CHOICES; k++) begin
    if (largest >= 24'(2 ** (LOWEST + k))) exponent = EXPONENT'(k);
  end
end

// The highest bit of the largest is the second of a mantissa: its step is 2**(LOWEST + e - M + 2).
logic [CHOICES*BLOCK_SIZE*OUT_WIDTH-1:0] rounded;
for (genvar e = 0; e < CHOICES; e++) begin : g_exponent
  for (genvar k = 0; k < BLOCK_SIZE; k++) begin : g_element
    localparam int STEP = LOWEST + e - OUT_WIDTH + 2;
    logic [IN_WIDTH-1:0] element;
    assign element = tensor[k*IN_WIDTH+:IN_WIDTH];
    spec_cast #(
        .IN_FRAC(STEP > 0 ? STEP : 0), .OUT_FRAC(STEP > 0 ? 0 : -STEP), .OUT_WIDTH(OUT_WIDTH),
        .ROUNDING(ROUNDING), .OVERFLOW(1)
    ) u_spec (
        .x(24'($signed(element))),
        .y(rounded[(e*BLOCK_SIZE+k)*OUT_WIDTH+:OUT_WIDTH])
    );
  end
end

assign due = {
  exponent, rounded[(exponent*BLOCK_SIZE+place*IN_LANES)*OUT_WIDTH+:IN_LANES*OUT_WIDTH]
};

tensor_laws #(
    .WIDTH(IN_LANES * IN_WIDTH), .IN_BEATS(BEATS), .OUT_BEATS(BEATS), .BEAT($bits(data_out_0)),
    .SLOTS(8), .LATENCY(6), .GAP(BEATS + 7)
) u_laws (
    .*
);

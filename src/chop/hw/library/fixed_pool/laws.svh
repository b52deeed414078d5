// The maximum or the mean of each window of KERNEL_COLUMNS pixels of a row.
localparam int SLOTS = 8;
localparam int LATENCY = 8;
logic [OUT_WIDTH-1:0] mean;
logic [KERNEL_COLUMNS*IN_WIDTH-1:0] tensor;
logic signed [23:0] x, largest, sum;
logic [IN_WIDTH-1:0] code;
wire logic [OUT_WIDTH-1:0] due = IS_MAXIMUM ? OUT_WIDTH'(largest) : mean;

always_comb begin
  sum = '0;
  for (int k = 0; k < KERNEL_COLUMNS; k++) begin
    code = tensor[k*IN_WIDTH+:IN_WIDTH];
    x = 24'($signed({IN_SIGNED && code[IN_WIDTH-1], code}));
    sum = sum + x;
    if (k == 0 || x > largest) largest = x;
  end
end

spec_cast #(.IN_FRAC(IN_FRAC), .DIVISOR(KERNEL_COLUMNS), `OUT_FORMAT) u_spec (.x(sum), .y(mean));
tensor_laws #(
    .WIDTH(IN_WIDTH), .IN_BEATS(KERNEL_COLUMNS), .OUT_BEATS(1), .BEAT(OUT_WIDTH), .SLOTS(SLOTS),
    .LATENCY(LATENCY), .GAP(LATENCY + KERNEL_COLUMNS + 2)
) u_laws (
    .*
);

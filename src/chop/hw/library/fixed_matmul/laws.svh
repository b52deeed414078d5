// The product of a row with a matrix, exactly and then cast. The matrix has any value and stays from
// one reset to the next; its stream may stall.
logic [IN_1_WIDTH-1:0] data_in_1;
logic [IN_SIZE*OUT_SIZE*IN_1_WIDTH-1:0] matrix;  // in the order of its stream
logic [IN_SIZE*IN_WIDTH-1:0] tensor;
logic [OUT_SIZE*OUT_WIDTH-1:0] result;
logic is_lawful;
wire logic is_moving = data_in_1_valid;
wire logic is_fed = data_in_0_valid && data_in_1_valid;
wire logic [OUT_WIDTH-1:0] due = result[place*OUT_WIDTH+:OUT_WIDTH];

for (genvar column = 0; column < OUT_SIZE; column++) begin : g_column
  logic signed [23:0] sum, x, y;
  int from;
  always_comb begin
    sum = '0;
    for (int k = 0; k < IN_SIZE; k++) begin
      from = DATA_IN_1_IS_TRANSPOSED ? column * IN_SIZE + k : k * OUT_SIZE + column;
      x = 24'(tensor[k*IN_WIDTH+:IN_WIDTH]);
      y = 24'(matrix[from*IN_1_WIDTH+:IN_1_WIDTH]);
      sum = sum + x * y;
    end
  end
  spec_cast #(.IN_FRAC(0), `OUT_FORMAT) u_spec (
      .x(sum), .y(result[column*OUT_WIDTH+:OUT_WIDTH])
  );
end

repeating_source #(.WIDTH(IN_1_WIDTH), .BEATS(IN_SIZE * OUT_SIZE)) u_matrix (
    .*, .valid(data_in_1_valid), .ready(data_in_1_ready), .data(data_in_1), .beats(matrix)
);
tensor_laws #(
    .WIDTH(IN_WIDTH), .IN_BEATS(IN_SIZE), .OUT_BEATS(OUT_SIZE), .BEAT(OUT_WIDTH), .SLOTS(12),
    .LATENCY(16), .GAP(17)
) u_laws (
    .*
);

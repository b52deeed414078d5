// Each input against each of its thresholds, as numbers.
logic is_lawful;
logic [IN_SIZE*LEVELS-1:0] expected;

for (genvar k = 0; k < IN_SIZE * LEVELS; k++) begin : g_expected
  wire logic [IN_WIDTH-1:0] code = data_in_0[k/LEVELS*IN_WIDTH+:IN_WIDTH];
  wire logic signed [23:0] x = IN_SIGNED ? 24'($signed(code)) : 24'(code);
  wire logic signed [23:0] offset = 24'(THRESHOLDS[k*64+:23]);
  wire logic signed [23:0] lowest = IN_SIGNED ? -(24'sd1 <<< (IN_WIDTH - 1)) : 24'sd0;
  assign expected[k] = x - lowest >= offset;
end

lawful_source #(.WIDTH(IN_SIZE * IN_WIDTH)) u_source (
    .*, .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready)
);
pass_laws #(.WIDTH(IN_SIZE * LEVELS)) u_laws (.*);

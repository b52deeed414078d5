// The bit of each table at the address that its inputs spell, by multiplexers of two.
logic is_lawful;
logic [OUT_SIZE-1:0] expected;

for (genvar k = 0; k < OUT_SIZE; k++) begin : g_expected
  wire logic high = data_in_0[32'(TABLES[k*192+80+:16])];
  wire logic low = data_in_0[32'(TABLES[k*192+64+:16])];
  assign expected[k] = high ? (low ? TABLES[k*192+3] : TABLES[k*192+2])
                            : (low ? TABLES[k*192+1] : TABLES[k*192]);
end

lawful_source #(.WIDTH(IN_SIZE)) u_source (
    .*, .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready)
);
pass_laws #(.WIDTH(OUT_SIZE)) u_laws (.*);

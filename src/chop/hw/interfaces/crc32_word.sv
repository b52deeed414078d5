// CRC-32 of IEEE 802.3 (that of zlib) after four more bytes, the low byte first; combinational.
//
// Start with all ones. The inverse of `crc` is the checksum.
`default_nettype none

module crc32_word (
    input  wire logic [31:0] crc,
    input  wire logic [31:0] data,
    output      logic [31:0] next
);

  localparam logic [31:0] POLYNOMIAL = 32'hedb88320;

  // the remainder is linear: each bit of it is the parity of some bits of crc ^ data
  function automatic logic [31:0] remainder(input int bit_number);
    logic [31:0] rest;
    rest = 32'b1 << bit_number;
    for (int k = 0; k < 32; k++) rest = rest[0] ? (rest >> 1) ^ POLYNOMIAL : rest >> 1;
    remainder = rest;  // Yosys knows no `return`
  endfunction

  for (genvar k = 0; k < 32; k++) begin : g_bit
    logic [31:0] mask;
    for (genvar j = 0; j < 32; j++) begin : g_mask
      localparam logic [31:0] REST = remainder(j);
      assign mask[j] = REST[k];
    end
    assign next[k] = ^(mask & (crc ^ data));
  end

endmodule

`default_nettype wire
